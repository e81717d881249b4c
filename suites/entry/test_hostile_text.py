"""Text from anywhere goes through every renderer, and damaged files through their readers: neither does any harm."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from cemverify.results.envelope import ResultError, Table, read
from cemverify.results.tables import RENDERERS, comma_separated, latex, markdown
from cemverify.runs import CellStore
from cemverify.runs.store import CorruptCell
from suites.runs.light import walks

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
    assert third.startswith("\\begin{tabular}")
    assert comma_separated(tables, [f"o{origin}"]).splitlines()[1].startswith("# o")


@settings(max_examples=100)
@given(st.data())
def test_a_damaged_cell_is_told_from_a_sound_one(tmp_path_factory: object, data: st.DataObject) -> None:
    folder: Path = tmp_path_factory.getbasetemp() / "fuzz"  # type: ignore[attr-defined]
    store, cell = CellStore(folder), walks(1)[0]
    store.put(cell, {"end": 1.0})
    path = store.path(cell.key)
    sound = path.read_bytes()
    at = data.draw(st.integers(0, len(sound) - 1))
    junk = data.draw(st.sampled_from([b"", b"\xff", b"NaN", b'"\\ud800"', b"[" * 5000, b"9" * 5000]))
    damaged = sound[:at] + junk + data.draw(st.sampled_from([b"", sound[at + 1 :]]))
    path.write_bytes(damaged)
    try:
        content = store.get(cell.key)
    except CorruptCell:
        return
    assert content is not None
    assert json.loads(damaged) == json.loads(sound)


@settings(max_examples=100)
@given(
    st.binary(max_size=50)
    | st.recursive(st.none() | st.integers() | TEXT, st.lists).map(lambda v: json.dumps(v).encode())
)
def test_what_is_no_result_is_refused(tmp_path_factory: object, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.json"  # type: ignore[attr-defined]
    path.write_bytes(content)
    try:
        read(path)
    except ResultError:
        return
    raise AssertionError(content)


def test_no_name_reaches_stderr_but_through_what_makes_it_harmless() -> None:
    root = Path(__file__).parents[2]
    # the guard escapes what it says, a saved script is a program of its own, and detection counts in one line
    spared = {
        "cemverify/console/guard.py",
        "cemverify/console/streams.py",
        "cemverify/commands/detection.py",
        "cemverify/conformance/counterexamples/standalone.py",
    }
    printing = re.compile(r"print\([^\n]*\{[^\n]*file=sys\.stderr")
    printers = [path.relative_to(root) for package in ("cemverify", "synthetic", "reports", "benchmarks")
             for path in (root / package).rglob("*.py") if printing.search(path.read_text())]  # fmt: skip
    assert [str(path) for path in printers if str(path) not in spared] == [], "use cemverify.console.streams.note"
