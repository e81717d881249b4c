"""Text from anywhere goes through every renderer, and damaged files through their readers: neither does any harm."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from cemverify.results.envelope import Table
from cemverify.results.tables import RENDERERS, comma_separated, latex, markdown
from suites.kit.source import PACKAGES, files_of, name

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


def test_no_name_reaches_stderr_but_through_what_makes_it_harmless() -> None:
    # the guard escapes what it says, and a saved script is a program of its own
    spared = {
        "cemverify/console/guard.py",
        "cemverify/console/streams.py",
        "cemverify/conformance/counterexamples/standalone.py",
    }
    printing = re.compile(r"print\([^\n]*\{[^\n]*file=sys\.stderr")
    printers = {name(file) for package in PACKAGES for file in files_of(package) if printing.search(file.read_text())}
    assert printers - spared == set(), "use cemverify.console.streams.note"
