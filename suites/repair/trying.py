"""What `cemverify repair` makes of one mistake."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Sequence
from pathlib import Path

from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.properties import select
from cemverify.conformance.workers import isolation
from cemverify.repair.edits import Edit
from cemverify.repair.search import RepairOutcome, enough, search
from cemverify.repair.wording import as_json, in_words
from suites.apart import Row, apart
from suites.repair.mistakes import ROOT, Mistake

# What a mistake in a formula violates; the rest asks backward passes, the process, long rows or other dtypes.
FAMILIES = ("gradient", "descent", "tying", "recursion", "structure")
EXAMPLES = 12  # for each property
SEARCH = 300.0  # seconds, which a busy machine needs

NAME = "mistaken"


def tried(mistake: Mistake, workers: int) -> Row:
    """What is offered for a mistake, and the seconds that the processors spent, of all processes together."""
    row = {"base": mistake.base, "line": mistake.line, "before": mistake.before, "after": mistake.after}
    # beside what the file imports of its own package
    files = {f"{NAME}.py": mistake.text, f"{Path(mistake.base).parent}/place": ""}
    return {**row, **apart(_repaired, files, mistake, workers)}


def _repaired(mistake: Mistake, workers: int) -> Row:
    """As the command does (see `cemverify.commands.repair`)."""
    name, effort = f"{NAME}:mine", Effort(examples=EXAMPLES, seconds=240.0, reads_code=True)
    properties = select([f"{family}/*" for family in FAMILIES])
    *_, finished = isolation.run(name, properties, effort, workers, ending=enough(properties))
    assert isinstance(finished, RunFinished)
    outcome = RepairOutcome()
    if any(record.verdict == Verdict.VIOLATED for record in finished.records):
        outcome = search(name, properties, finished.records, effort, seconds=SEARCH, workers=workers)
    content = as_json(outcome, name)
    whole = [repair for repair in outcome.repairs if repair.mends]
    original = normal((ROOT / mistake.base).read_text())
    texts = [_patched(mistake.text, repair.diff) for repair in whole]
    return {
        "violated": [record.id for record in finished.records if record.verdict == Verdict.VIOLATED],
        "said": in_words(outcome, finished, name).splitlines()[0],
        "refusal": content["refusal"],
        "tried": content["tried"],
        "cut_short": content["cut_short"],
        "mended": len(whole),
        "edits": [len(repair.edits) for repair in whole],
        "diffs": [repair.diff for repair in whole],
        "alike": [len(repair.alike) for repair in whole],
        "rank": next((i for i, text in enumerate(texts, 1) if text is not None and normal(text) == original), None),
        "rank_of_alike": next(
            (i for i, repair in enumerate(whole, 1) if any(_undone(mistake, e) == original for e in repair.alike)),
            None,
        ),
    }


def _undone(mistake: Mistake, edits: Sequence[tuple[str, Edit]]) -> str:
    """The program after edits of the mistaken file."""
    text = mistake.text
    for _, edit in edits:
        text = edit.applied(text)
    return normal(text)


def normal(text: str) -> str:
    """The program, whatever its layout."""
    return ast.dump(ast.parse(text))


def _patched(text: str, diff: str) -> str | None:
    """The text after a unified diff; None if it does not apply."""
    file = Path(f"{NAME}.py")
    file.write_text(text)
    done = subprocess.run(["patch", "-p1", "-s"], input=diff, text=True, capture_output=True)  # noqa: S607
    return file.read_text() if done.returncode == 0 else None
