"""Text from anywhere goes through every renderer, and does no harm."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from cemverify.results.envelope import Table
from cemverify.results.tables import RENDERERS, comma_separated, latex, markdown

TEXT = st.text(st.characters() | st.sampled_from("<>|\\\n\r%&$#_{}[]()`=@\x1b\u2028\ud800"), max_size=20)


@given(TEXT, TEXT, TEXT, TEXT)
def test_no_text_leaves_its_place_in_any_format(title: str, origin: str, column: str, cell: str) -> None:
    tables = [Table(f"t{title}", [f"c{column}", "d"], [[f"x{cell}", 1]])]
    for render in RENDERERS.values():
        rendered = render(tables, [f"o{origin}"])
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u2028\ud800-\udfff]", rendered)
        rendered.encode()
    assert not re.search(r"(?<!\\)(\\\\)*<[A-Za-z/!?]", markdown(tables, ["o"]))
    assert len(markdown(tables, ["o"]).splitlines()) == 7
    first, second, third = latex(tables, [f"o{origin}"]).splitlines()[:3]
    assert first[:3] == "% t"
    assert second[:3] == "% o"
    assert third == r"\begin{table}[htbp]"
    assert comma_separated(tables, [f"o{origin}"]).splitlines()[1].startswith("# o")
