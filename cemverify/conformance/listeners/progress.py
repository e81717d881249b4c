"""How far a run has come: a bar that is redrawn on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from cemverify.conformance.judging.events import Event, PropertyFinished, PropertyStarted, RunFinished, RunStarted
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.listeners.colours import OF_VERDICTS
from cemverify.console.streams import is_coloured, is_live

if TYPE_CHECKING:
    from rich.console import RenderableType

Listener = Callable[[Event], None]

_FEW = 3  # properties to finish before the rest is estimated


@contextmanager
def progress(stream: TextIO | None = None, *, verbose: bool = False) -> Iterator[Listener]:
    """A listener that shows how far a run has come; it always restores the terminal.

    Args:
        stream: stderr if None. verbose: on a terminal, keep lines of properties that hold, too.
    """
    stream = stream or sys.stderr
    if not is_live(stream):
        yield ProgressLines(stream)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(
        file=stream, force_terminal=True, color_system="standard", no_color=not is_coloured(stream), highlight=False
    )
    bar = ProgressBar(verbose=verbose)
    with Live(get_renderable=bar.draw, console=console, refresh_per_second=5, transient=True) as live:
        bar.keep = live.console.print
        yield bar


class ProgressLines:
    """One line per property on a stream: the count, the property, and how long it took."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.done = self.total = 0

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self.total = event.offered
                print(_begun(event), file=self.stream, flush=True)
            case PropertyFinished(record) if record.verdict != Verdict.NOT_OFFERED:
                self.done += 1
                line = f"[{self.done:>{len(str(self.total))}}/{self.total}] {record.verdict:<12} {record.id}"
                print(f"{line}  ({record.seconds:.1f} s)", file=self.stream, flush=True)


class ProgressBar:
    """A bar, the tally, and what is being tested; above it a line for each property that does not hold.

    Args:
        verbose: keep a line for every property. clock: for tests.
    """

    def __init__(self, *, verbose: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self.keep: Callable[..., None] = lambda *_: None
        self._verbose, self._clock = verbose, clock
        self._total = 0
        self._started = clock()
        self._tally: Counter[Verdict] = Counter()
        self._asking: dict[str, float] = {}

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._total, self._started = event.offered, self._clock()
                self.keep(_begun(event))
            case PropertyStarted(id_):
                self._asking[id_] = self._clock()
            case PropertyFinished(record) if record.verdict != Verdict.NOT_OFFERED:
                self._asking.pop(record.id, None)
                self._tally[record.verdict] += 1
                if self._verbose or record.verdict != Verdict.HOLDS:
                    self.keep(_line(record))
            case RunFinished():
                self._asking.clear()

    def draw(self) -> RenderableType:
        """The lines of the bar, which are rewritten in place on a terminal."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar as Bar
        from rich.table import Table
        from rich.text import Text

        if not self._total:
            return Text("loading the implementation", no_wrap=True, overflow="ellipsis")
        done = self._tally.total()
        row = Table.grid(padding=(0, 1), expand=True)
        row.add_column(ratio=1)
        row.add_column(no_wrap=True)
        style = OF_VERDICTS[Verdict.VIOLATED if self._tally[Verdict.VIOLATED] else Verdict.HOLDS]
        row.add_row(Bar(self._total, done, complete_style=style, finished_style=style), self.time())
        tally = Text(no_wrap=True, overflow="ellipsis")
        for verdict, count in sorted(self._tally.items(), key=lambda item: list(Verdict).index(item[0])):
            tally.append(f"{', ' if tally else ''}{count} {'hold' if verdict == Verdict.HOLDS else verdict}")
            tally.stylize(OF_VERDICTS[verdict], len(tally) - len(f"{count} {verdict}") + (verdict == Verdict.HOLDS))
        return Group(row, *([tally] if tally else []), *(self._now(*begun) for begun in self._asking.items()))

    def time(self) -> str:
        """How many are done, and how long the rest may take, at the average time of those done."""
        done, spent = self._tally.total(), self._clock() - self._started
        left = f", about {_minutes(spent * (self._total - done) / done)} left" if _FEW <= done < self._total else ""
        return f"{done}/{self._total}  {_minutes(spent)}{left}"

    def _now(self, id_: str, since: float) -> RenderableType:
        from rich.text import Text

        return Text(f"  {self._clock() - since:3.0f} s  {id_}", style="dim", no_wrap=True, overflow="ellipsis")


def _begun(event: RunStarted) -> str:
    absent = event.applicable - event.offered
    what = "property" if event.offered == 1 else "properties"
    return f"{event.implementation}: {event.offered} {what} to test, {absent} not offered"


def _line(record: Record) -> RenderableType:
    from rich.text import Text

    line = Text(f"{record.verdict:<12}", style=OF_VERDICTS[record.verdict])
    return line.append(f" {record.id}  ({record.seconds:.1f} s)", style="default not bold")


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
