"""The command line of the benchmarks: `python -m benchmarks COMMAND ...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from cemverify.console.guard import Run, enter

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from cemverify.console.parsing import Parser

DESCRIPTION = """\
Measures what the fast paths buy: ratios of time, taken in turn in one process, beside the ratio of FLOPs. No speed is
printed for a path that misses its error budget in the same process.
"""

GPU = """\
A rehearsal of every path on fake tensors, and then what needs a GPU: the GPU-marked suites, `cemverify check` on it
in three dtypes, attention against flash attention, training and decoding at the paper's sizes, and a short training
whose loss falls. Each stage has a time limit, and one that is finished is not done again, so you can stop the command
and repeat it. Without a GPU the same stages run at small sizes, and the page lists what is still to be measured on a
GPU.
"""

EPILOG = """\
examples:
  python -m benchmarks                                      every benchmark of a CPU, about five minutes
  python -m benchmarks attention decoding --seconds 60      some of them
  python -m benchmarks --output r.json --page p.md          the result file; the page, and beside it its picture
  python -m benchmarks --report r.json --page p.md          no measurement: the page of that result file
  python -m benchmarks gpu                                  everything, at most 25 minutes
  python -m benchmarks gpu --only training attention        some stages
  python -m benchmarks gpu --report --page docs/results/gpu.md   no measurement: the page of what was found

Exit code 0, or 2 with one sentence on stderr if the request makes no sense or a file cannot be written.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    return enter(_chosen, arguments)


def _chosen(arguments: list[str]) -> Run:
    from cemverify.console.parsing import again

    if arguments[:1] == ["gpu-stage"]:  # started by the harvest
        return lambda: _gpu_stage(*arguments[1:])
    options = _gpu_parser().parse_args(arguments[1:]) if arguments[:1] == ["gpu"] else _parser().parse_args(arguments)
    options.made_by = again(["python", "-m", "benchmarks"], arguments)

    def run() -> int:
        try:
            return int(options.run(options))
        except KeyboardInterrupt as interrupt:
            raise KeyboardInterrupt("interrupted; stages that were finished are kept") from interrupt

    return run


def _parser() -> Parser:
    from cemverify.console.parsing import Help, Parser, path, positive

    parser = Parser(
        prog="python -m benchmarks",
        usage="%(prog)s [NAME ...] [options]\n       %(prog)s gpu [options]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=Help,
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="attention, language-step, decoding (default all)",
    )
    parser.add_argument(
        "--seconds",
        type=positive,
        default=270.0,
        metavar="S",
        help="about how long they take together, three rounds of each at least (default 270)",
    )
    parser.add_argument(
        "--report", type=path, metavar="FILE", help="measure nothing: show the benchmarks of this result file"
    )
    parser.add_argument("--output", type=path, metavar="FILE", help="write the result file")
    parser.add_argument(
        "--page", type=path, metavar="FILE", help="write the page, Markdown, and beside it the picture"
    )
    parser.set_defaults(run=_benchmarks)
    return parser


def _benchmarks(options: argparse.Namespace) -> int:
    from benchmarks import page
    from cemverify.console.errors import UsageError, one_of
    from cemverify.console.streams import note
    from cemverify.results import envelope
    from cemverify.results.provenance import Maker
    from cemverify.results.tables import terminal
    from reports.pictures import pictures_of

    envelope.check_outputs(options.output, pictured=options.page, read=[options.report])
    allowed = {b.name: b for b in page.BENCHMARKS}
    for name in options.names:
        one_of("benchmark", name, allowed, ", or gpu")
    if options.report is None:
        names = options.names or list(allowed)
        maker = Maker.now(options.made_by, {"benchmarks": names, "seconds": options.seconds}, 0, "cpu")
        result = page.run(names, options.seconds, maker, note)
        if options.output:
            envelope.write(options.output, result)
    else:
        if options.names or options.output:
            raise UsageError("--report shows a result file as it is: leave out names and --output")
        result = envelope.read(options.report)
        if result["kind"] != "benchmarks":
            raise UsageError(f"{options.report} is a result of kind {result['kind']!r}, and not of benchmarks")
    files: dict[Path, str] = {}
    if options.page is not None:
        with nullcontext() if options.report is None else envelope.complete(options.report, result):
            drawn = next((picture for picture in pictures_of(result) if picture.name == "roofline"), None)
            beside = options.page.with_name(f"{options.page.stem}-roofline.svg")
            files = {} if drawn is None else {beside: drawn.svg}
            files[options.page] = page.page(result, None if drawn is None else (beside.name, drawn))
    envelope.show(terminal(envelope.tables_of(result)))
    for file, content in files.items():
        envelope.write_text(file, content)
    return 0


def _gpu_parser() -> Parser:
    from pathlib import Path

    from cemverify.console.parsing import Help, Parser, path, positive

    gpu = Parser(prog="python -m benchmarks gpu", description=GPU, epilog=EPILOG, formatter_class=Help)
    gpu.add_argument("--only", nargs="+", metavar="STAGE", help="these stages; all if not given")
    gpu.add_argument("--device", default="auto", help="auto, cpu or cuda (default auto: a GPU if there is one)")
    gpu.add_argument(
        "--budget-minutes", type=positive, default=25.0, metavar="M", help="begin no stage after that (default 25)"
    )
    gpu.add_argument("--again", action="store_true", help="run stages that are finished once more")
    gpu.add_argument("--report", action="store_true", help="run nothing: make the result of what is in the folder")
    gpu.add_argument(
        "--folder", type=path, default=Path("out/gpu"), help="of the stages' files and gpu.json (default out/gpu)"
    )
    gpu.add_argument("--page", type=path, metavar="FILE", help="write the page, Markdown")
    gpu.set_defaults(run=_gpu)
    return gpu


def _gpu(options: argparse.Namespace) -> int:
    from benchmarks import harvest
    from cemverify.console.errors import one_of
    from cemverify.processes.devices import find_device
    from cemverify.results import envelope
    from cemverify.results.provenance import Maker
    from cemverify.results.tables import terminal

    names = [stage.name for stage in harvest.STAGES]
    for name in options.only or ():
        one_of("stage", name, dict.fromkeys(names))
    result_file = options.folder / "gpu.json"
    envelope.check_outputs(result_file, options.page, folders=[options.folder])
    device = find_device(options.device)
    options.folder.resolve().mkdir(parents=True, exist_ok=True)  # a link may point to a folder that does not exist
    configuration = {"stages": options.only or names, "budget_minutes": options.budget_minutes}
    maker = Maker.now(options.made_by, configuration, 0, device)
    if not options.report:
        chosen = [name for name in names if name in (options.only or names)]
        harvest.harvest(chosen, device, options.folder, options.budget_minutes, again=options.again)
    result = harvest.compose(options.folder, maker)
    envelope.write(result_file, result)
    if options.page:
        envelope.write_text(options.page, harvest.page(result, "python -m benchmarks gpu"))
    envelope.show(terminal(envelope.tables_of(result)))
    if result["owed"]:
        envelope.show("\nowed, to be run on a GPU: " + "; ".join(result["owed"]))
    return 0


def _gpu_stage(name: str, device: str, folder: str, seconds: str) -> int:
    from pathlib import Path

    from benchmarks import harvest

    harvest.perform(name, device, Path(folder), float(seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
