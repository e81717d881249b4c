"""The look of a run on a terminal of any width, in a pipe, and in colours."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest

from cemverify.conformance.judging.events import PropertyFinished, PropertyStarted, RunFinished, RunStarted
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.listeners import terminal
from cemverify.conformance.listeners.colours import show_coloured
from cemverify.conformance.listeners.progress import ProgressBar, progress
from cemverify.console import streams
from suites.reports.examples import a_property, violated

WIDTHS = (40, 80, 200)
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Tty(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


STATES = {"x": [[[0.0, 1.0], [0.0, 1.0]]], "h": [[[1.0, 0.0], [1.0, 0.0]]]}
CASE = {"config": {"dim": 2, "heads": 1}, **STATES, "weights": {"W_Q": [[[0.25, 1.75, -3.5, 0.125]]]}}
LONG = "update of the first token: got 1.25, expected 0 at (0, 0, 0), where the roundoff budget is 1.1e-16"
VIOLATED = replace(
    violated("structure/attention/causality-with-a-long-name", LONG, part="mask", because="it reads a later token"),
    claim="A token's update does not depend on the tokens that come after it, however many there are.",
    counterexample={"case": CASE, "comparison": {"got": [[[1.25]]], "expected": [[[0.0]]]}},
    margin=1234.5,
    seconds=0.0,
)
UNDECIDED = Record("descent/mlp/slow", "c", "s", Verdict.INCONCLUSIVE, 3, 0, reason="the time budget ran out")
ABSENT = Record("modes/mlp/cuda", "c", "s", Verdict.NOT_OFFERED, reason="cuda: there is no CUDA device here")
FINISHED = RunFinished(
    "mypkg.layers.attention:mine",
    [
        *(a_property(f"gradient/attention/case-{i}", margin=0.1 * i) for i in range(9)),
        a_property("descent/attention/falls"),
        UNDECIDED,
        *(a_property(f"structure/attention/case-{i}") for i in range(3)),
        VIOLATED,
        ABSENT,
    ],
    12.5,
)


UNDECIDED_ONLY = RunFinished(FINISHED.implementation, [r for r in FINISHED.records if r is not VIOLATED], 12.5)


def test_families_are_folded_or_counted_where_something_is_violated_and_the_diagnosis_comes_last() -> None:
    table = terminal.report(UNDECIDED_ONLY).partition("\n\n")[0].splitlines()
    assert [re.split(r" {2,}", line.strip()) for line in table[2:]] == [
        ["gradient", "all 9 hold", "540", "67 %", "9", "0.8"],
        ["descent", "1 hold, 1 inconclusive", "63", "63 %", "1", "0.25"],
        ["descent/mlp/slow", "inconclusive", "3", "0 %", "0"],
        ["structure", "all 3 hold", "180", "67 %", "3", "0.25"],
    ]
    counted, undecided, summary, diagnosis = terminal.report(FINISHED).split("\n\n")
    assert counted == "violated: structure 1 of 4\nnot decided: descent 1 of 2\nall hold: gradient (9)"
    assert undecided == "INCONCLUSIVE descent/mlp/slow\n  the time budget ran out"
    assert summary == terminal.summary(FINISHED)
    assert diagnosis.startswith("mypkg.layers.attention:mine: 1 of 15 violated: mask\n")
    assert diagnosis.endswith(f"again: cemverify check mypkg.layers.attention:mine --properties {VIOLATED.id}")


def test_what_cannot_be_judged_for_one_reason_is_told_once() -> None:
    alike = replace(UNDECIDED, id="descent/mlp/slower")
    other = replace(alike, id="a/b/c", reason="another")
    told = terminal.findings(RunFinished("mine", [UNDECIDED, alike, other], 1.0))
    assert "INCONCLUSIVE descent/mlp/slow, descent/mlp/slower\n  the time budget ran out\n" in told
    assert "INCONCLUSIVE a/b/c\n  another\n" in told


@pytest.mark.parametrize("verbose", [False, True], ids=["folded", "verbose"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_report_fits_the_terminal_and_loses_no_word(width: int, verbose: bool) -> None:
    narrow, wide = (terminal.findings(FINISHED, verbose=verbose, width=w) for w in (width, None))
    assert "".join(narrow.split()) == "".join(wide.split())
    assert max(map(len, narrow.splitlines())) <= min(width, streams.READABLE)
    assert max(map(len, terminal.report(FINISHED, verbose=verbose, width=width).splitlines())) <= width


def test_what_was_not_asked_is_told_in_few_words() -> None:
    names = ("position:alibi", "steps", "norm:scalar", "norm:folded", "start", "temperature")
    absent = [replace(ABSENT, id=f"a/mlp/{name}", reason=f"{name}: declared") for name in names]
    alone = terminal.report(replace(FINISHED, records=absent[:1]))
    assert alone.splitlines()[0] == "nothing was asked: it needs position:alibi, which not_offered lists"
    too_late = terminal.report(replace(FINISHED, records=absent, unasked=("gradient/mlp/silu",)))
    assert too_late.splitlines()[0].startswith("nothing was asked: the run ended before its first verdict; give")
    event = replace(FINISHED, records=[a_property("gradient/mlp/silu"), ABSENT, *absent], absences={"ignored": names})
    told = " ".join(terminal.report(event).split())
    assert "norm:folded (1) and 2 more (-v lists them)" in told
    assert "answered wrongly: position:alibi, steps, norm:scalar, norm:folded and 2 more (-v lists them)" in told
    assert "cuda" not in told  # the user declared nothing about it
    assert "cuda (1), position:alibi (1)" in " ".join(terminal.report(event, verbose=True).split())


def test_the_least_important_columns_go_first() -> None:
    wide, narrow = (terminal.report(FINISHED, verbose=True, width=w).splitlines()[0].split() for w in (120, 40))
    assert wide == ["property", "verdict", "examples", "telling", "discarded", "margin"]
    assert narrow == ["property", "verdict", "margin"]


@pytest.mark.parametrize(
    ("stream", "environment", "coloured"),
    [
        (Tty(), {}, True),
        (Tty(), {"NO_COLOR": "1"}, False),
        (Tty(), {"NO_COLOR": ""}, True),
        (Tty(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
        (io.StringIO(), {"FORCE_COLOR": "1"}, True),
        (io.StringIO(), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colours_follow_the_conventions(
    stream: io.StringIO, environment: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert streams.is_coloured(stream) == coloured


def test_colours_change_nothing_but_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    text = terminal.report(FINISHED, verbose=True, width=40)
    monkeypatch.setattr("sys.stdout", out := Tty())
    show_coloured(text)
    assert ANSI.sub("", out.getvalue()) == f"{text}\n"
    assert re.search(rf"\x1b\[1;31mVIOLATED {VIOLATED.id[:20]}", out.getvalue())
    assert "\x1b[32m" in out.getvalue()
    assert "\x1b[33minconclusive" in out.getvalue()
    monkeypatch.setattr("sys.stdout", pipe := io.StringIO())
    show_coloured(text)
    assert pipe.getvalue() == f"{text}\n"


def test_elsewhere_than_on_a_terminal_progress_is_one_plain_line_per_property() -> None:
    log = io.StringIO()
    with progress(log) as listener:
        listener(RunStarted("mine", 3, 2))
        listener(PropertyStarted("a/b/c"))
        listener(PropertyFinished(a_property("a/b/c")))
        listener(PropertyFinished(ABSENT))
        listener(PropertyFinished(VIOLATED))
    assert log.getvalue().splitlines() == [
        "mine: 2 properties to test, 1 not offered",
        "[1/2] holds        a/b/c  (0.5 s)",
        f"[2/2] violated     {VIOLATED.id}  (0.0 s)",
    ]


@pytest.mark.parametrize("verbose", [False, True])
def test_on_a_terminal_lines_are_rewritten_and_only_what_is_not_green_stays(verbose: bool) -> None:
    with progress(terminal_ := Tty(), verbose=verbose) as listener:
        listener(RunStarted("mine", 2, 2))
        listener(PropertyStarted("a/b/c"))
        listener(PropertyFinished(a_property("a/b/c")))
        listener(PropertyFinished(VIOLATED))
    text = terminal_.getvalue()
    assert "\x1b[2K" in text, "lines are erased"
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l"), "the cursor is shown again"
    lines = [line for line in ANSI.sub("", text).splitlines() if re.match(r"(holds|violated) {2,}", line)]
    assert [line.split()[:2] for line in lines] == [["holds", "a/b/c"]] * verbose + [["violated", VIOLATED.id]]


def test_a_terminal_is_left_as_it_was_when_a_run_is_interrupted() -> None:
    with pytest.raises(KeyboardInterrupt), progress(terminal_ := Tty()):
        raise KeyboardInterrupt
    assert terminal_.getvalue().rfind("\x1b[?25h") > terminal_.getvalue().rfind("\x1b[?25l")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_bar_fits_and_says_how_far_what_and_how_long(width: int) -> None:
    from rich.console import Console

    now = 0.0
    bar = ProgressBar(clock=lambda: now)
    bar(RunStarted("mine", 10, 10))
    for i in range(4):
        bar(PropertyFinished(a_property(f"a/b/{i}")))
    bar(PropertyFinished(VIOLATED))
    bar(PropertyStarted("gradient/attention/a-property-with-a-name-that-is-long"))
    now = 65.0
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(bar.draw())
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) == 3, "no line wraps, or rewriting would miss some"
    assert "5/10  1:05, about 1:05 left" in lines[0]
    assert lines[1].strip() == "4 hold, 1 violated"
    assert " 65 s  gradient/attention/a-prop" in lines[2]
