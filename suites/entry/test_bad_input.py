"""Whatever is typed, the answer to what makes no sense is one sentence and exit code 2: one row for each input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

from suites.kit.commands import refused

HUGE = "9" * 400

# Options that take a whole number of at least 1.
COUNTS = {
    "cemverify check cemverify:reference": ("--examples", "--memory", "--workers"),
    "cemverify power": ("--seeds", "--examples", "--matrix"),
    "synthetic examine rbf": ("--dimensions", "--train-points", "--test-points"),
    "synthetic recursion": ("--steps", "--seeds", "--train-points"),
    "synthetic atlas": ("--points",),
    "synthetic language train": (
        *("--steps", "--batch", "--context", "--accumulate", "--dim", "--layers", "--heads"),
        *("--depths", "--save-every", "--symbols", "--order", "--states", "--length"),
    ),
    "synthetic language study diagonal": ("--seeds", "--steps", "--batch", "--dim", "--heads"),
}
NOT_COUNTS = {
    "0": "must be at least 1, not 0",
    "-3": "must be at least 1, not -3",
    "two": "'two' is not a whole number",
    "1.5": "'1.5' is not a whole number",
    HUGE: "... (400 digits)",
}

# Options that take a positive number.
POSITIVES = {
    "cemverify check cemverify:reference": ("--seconds", "--timeout"),
    "synthetic examine rbf": ("--noise",),
    "synthetic recursion": ("--noise", "--rates"),
    "synthetic language train": ("--learning-rate", "--megabytes"),
    "synthetic language study diagonal": ("--tflops",),
    "benchmarks gpu": ("--budget-minutes",),
}
NOT_POSITIVES = {
    "0": "must be a positive number, not 0",
    "-1": "must be a positive number, not -1",
    "nan": "must be a positive number, not nan",
    "inf": "must be a positive number, not inf",
    "much": "'much' is not a number",
}

# Commands that take a seed.
SEEDED = (
    *("cemverify check cemverify:reference", "synthetic examine rbf", "synthetic recursion", "synthetic atlas"),
    *("synthetic language train", "synthetic language study diagonal"),
)
NOT_SEEDS = {
    "-1": "--seed: must be at least 0, not -1",
    "4294967296": "--seed: must be at most 4,294,967,295, not 4294967296",
    "now": "--seed: 'now' is not a whole number",
}

# Everything else: a command line and what is said about it.
ROWS = [
    ("cemverify check nosuch:thing", "no module 'nosuch'"),
    ("cemverify check :reference", "has no module before the colon"),
    ("cemverify check cemverify:reference --properties gradeint", "no property matches 'gradeint'; families are"),
    ("cemverify check reference --properties gradient/layer", "none of these properties applies to this kind"),
    ("cemverify check cemverify:reference --device meta", "device 'meta' is not available"),
    ("cemverify check cemverify:reference --json ", "an empty text names no file"),
    ("cemverify check cemverify:reference --json /proc/no/r.json", "cannot write /proc/no/r.json"),
    ("cemverify check cemverify:reference --within 0", "--within: must be a positive number, not 0"),
    ("cemverify check cemverify:reference --update-known --reason x", "--update-known needs --known FILE"),
    ("cemverify check cemverify:reference --update-known --first", "leave out --first, --within"),
    ("cemverify check cemverify:reference --known k --update-known --reason ", "needs --reason"),
    (
        "cemverify check reference --known k --update-known --reason x --expires 2020-01-01",
        "--expires 2020-01-01 is in the past",
    ),
    ("cemverify check cemverify:reference --baseline none.json", "cannot read none.json"),
    (
        "cemverify check cemverify:reference --checkpoint w --layer a --quick",
        "--checkpoint asks everything at once",
    ),
    ("cemverify power --store ", "an empty text names no file"),
    ("cemverify", "the following arguments are required: COMMAND"),
    ("cemverify chekc", "invalid choice: 'chekc' (choose from 'demo', 'init', 'check', "),
    ("cemverify init --name numpy", "there is a module numpy already"),
    ("cemverify init --name json", "there is a module json already"),
    ("cemverify list --propertise", "there is no option --propertise; see cemverify list --help"),
    ("cemverify list nothing", "no property matches 'nothing'"),
    ("cemverify claims nothing", "no claim 'nothing'"),
    ("cemverify claims a b", "'b' is one word too many"),
    ("cemverify claims --json . a", "cannot write .: it is a folder"),
    ("cemverify check", "the following arguments are required: IMPLEMENTATION"),
    ("cemverify check cemverify:reference c:d", "'c:d' is one word too many"),
    ("cemverify check cemverify:reference --dtype float16", "invalid choice: 'float16'"),
    ("cemverify check cemverify:reference --device cpu:7", "device 'cpu:7' is not available"),
    ("cemverify check cemverify:reference --device tpu", "device 'tpu' is not available"),
    ("cemverify check cemverify:reference --device cuda:99", "device 'cuda:99' is not available"),
    ("cemverify check cemverify:reference --memory 1", "--memory is 1"),
    ("cemverify check cemverify:reference --properties nonsense", "no property matches 'nonsense'"),
    ("cemverify check cemverify:reference --json .", "cannot write .: it is a folder"),
    ("cemverify check cemverify:reference --json x --junit x", "two outputs have the same path"),
    ("cemverify check cemverify:reference --json x/y --markdown x", "x cannot be a file, and a folder for x/y"),
    ("cemverify check cemverify:reference --json x --save-counterexamples x/y", "x cannot be a file, and a folder"),
    ("cemverify check cemverify:reference --json " + "x" * 256, "a name of 256 bytes is too long: at most 255"),
    ("cemverify check cemverify:reference --json " + "x/" * 2000 + "y", "a path of 4,001 bytes and 2,001 parts"),
    ("cemverify check cemverify:reference --json x --markdown y/../x", "two outputs have the same path"),
    ("cemverify check cemverify:reference --save-counterexamples {text}", "it is not a folder"),
    ("cemverify check cemverify:reference --known", "--known: expected one argument"),
    ("cemverify check cemverify:reference --known {none}", "cannot read"),
    ("cemverify check cemverify:reference --known {text}", "is not TOML"),
    ("cemverify check cemverify:reference --known {binary}", "is not UTF-8"),
    ("cemverify check cemverify:reference --known {folder}", "cannot read"),
    ("cemverify check cemverify:reference --update-known", "--update-known needs --known"),
    ("cemverify check cemverify:reference --known k --update-known", "--update-known needs --reason"),
    ("cemverify check cemverify:reference --known k --reason because", "only with --update-known"),
    (
        "cemverify check cemverify:reference --known k --update-known --reason b --expires soon",
        "'soon' is not a date like 2027-02-19",
    ),
    (
        "cemverify check cemverify:reference --known k --update-known --reason b --expires 2020-01-01",
        "is in the past",
    ),
    ("cemverify check cemverify:reference --on-regression fail", "--on-regression needs --baseline"),
    ("cemverify check cemverify:reference --on-regression panic --baseline x", "invalid choice: 'panic'"),
    ("cemverify check cemverify:reference --baseline {none}", "cannot read"),
    ("cemverify check cemverify:reference --baseline {text}", "is not JSON"),
    ("cemverify check cemverify:reference --baseline {binary}", "is not JSON"),
    ("cemverify check cemverify:reference --baseline {deep}", "nested deeper"),
    ("cemverify check cemverify:reference --baseline {atlas}", "of kind 'atlas'"),
    ("cemverify check cemverify:reference --baseline {loop}", "cannot read"),
    ("cemverify replay", "the following arguments are required: FILE"),
    ("cemverify replay {none}", "cannot read"),
    ("cemverify replay {text}", "is not JSON"),
    ("cemverify replay {list}", "is not a result file"),
    ("cemverify replay {deep}", "nested deeper"),
    ("cemverify replay {atlas}", "not a saved counterexample"),
    ("cemverify replay {folder}", "cannot read"),
    ("cemverify power --workers -1", "must be at least 0, not -1"),
    ("cemverify power --workers 99999", "must be at most 4,096, not 99999"),
    ("cemverify power --shard 3/2", "--shard 3/2 names no part"),
    ("cemverify power --cluster localhost", "'localhost' is not the address of a Dask scheduler"),
    ("cemverify power --json x --markdown x", "two outputs have the same path"),
    ("synthetic", "the following arguments are required: COMMAND"),
    ("synthetic recursoin", "invalid choice: 'recursoin'"),
    ("synthetic examine", "the following arguments are required: PRIOR"),
    ("synthetic examine rfb", "unknown prior 'rfb'"),
    ("synthetic examine rbf linear", "'linear' is one word too many"),
    ("synthetic examine rbf --train-points 1", "train points must be at least 2, not 1"),
    ("synthetic examine rbf --features -1", "features must be at least 1, or 0 for an exact task, not -1"),
    ("synthetic examine rbf --dimensions 100000000000", "GB of memory"),
    ("synthetic examine rbf --train-points 1000000000000", "GB of memory"),
    ("synthetic examine rbf --train-points 100000 --features 0", "GB of memory"),
    ("synthetic examine rbf --train-points 9000 --features 1000000000", "GB of memory"),
    ("synthetic examine rbf --noise 1e300", "the noise must be from 1e-30 to 1e+30, not 1e+300"),
    ("synthetic examine " + "(" * 400 + "rbf" + ")" * 400, "this cannot be read"),
    ("synthetic examine " + "+".join(["rbf"] * 400), "names 400 kernels; 100 is the most"),
    ("synthetic examine " + "9" * 400 + "*rbf", "numbers are from 1e-30 to 1e+30"),
    ("synthetic examine 1e-200*rbf", "numbers are from 1e-30 to 1e+30"),
    ("synthetic examine 0*rbf", "positive numbers only, not by 0"),
    ("synthetic examine rbf(lengthscale=1e300)", "must be from 1e-30 to 1e+30 in size"),
    ("synthetic examine rbf(lengthscale=0)", "must be a positive number, not 0"),
    ("synthetic examine rbf(width=2)", "rbf has no parameter 'width'"),
    ("synthetic examine rbf(", "this cannot be read"),
    ("synthetic examine rbf)", "this cannot be read"),
    ("synthetic examine 2", "a number alone is not a kernel"),
    ("synthetic examine rbf(lengthscale=[1,2])", "2 lengthscales were given"),
    ("synthetic examine nowhere:kernel", "cannot import nowhere"),
    ("synthetic examine builtins:dict", "it must be a GPyTorch kernel"),
    ("synthetic examine builtins:exit", "exit raised SystemExit"),
    ("synthetic examine suites.entry.kernels:raises", "its kernel raised ZeroDivisionError"),
    ("synthetic examine suites.entry.kernels:leaves", "its kernel raised SystemExit: 0"),
    ("synthetic examine suites.entry.kernels:misshapen", "got torch.Size([1, 1])"),
    ("synthetic examine suites.entry.kernels:nowhere", "its covariance is not finite"),
    ("synthetic examine suites.entry.kernels:indefinite", "not positive definite"),
    ("synthetic examine suites.entry.leaving:kernel", "kernel raised SystemExit: 0"),
    ("synthetic examine rbf --output .", "cannot write .: it is a folder"),
    ("synthetic atlas --prior rfb", "unknown prior 'rfb'"),
    ("synthetic atlas --markdown .", "cannot write .: it is a folder"),
    ("synthetic recursion --preset quik", "unknown preset 'quik'"),
    ("synthetic recursion --models cme", "unknown model family 'cme'"),
    ("synthetic recursion --prior rbf rbf", "is given twice"),
    ("synthetic recursion --steps 1 1", "is given twice"),
    ("synthetic recursion --device cpu:7", "device 'cpu:7' is not available"),
    ("synthetic recursion --shard half", "--shard half names no part"),
    ("synthetic recursion --workers x", "'x' is not a whole number"),
    ("synthetic recursion --store {text}", "cannot be written"),
    ("synthetic recursion --output .", "cannot write .: it is a folder"),
    ("synthetic language", "the following arguments are required: COMMAND"),
    ("synthetic language trian", "invalid choice: 'trian'"),
    ("synthetic language train --sead 3", "there is no option --sead"),
    ("synthetic language train --seeds 3", "there is no option --seeds"),
    ("synthetic language train --batch 1000000000000", "GB of memory"),
    ("synthetic language train --dim 1000000000", "GB of memory"),
    ("synthetic language train --depths 1 1", "depth 1 is given twice"),
    ("synthetic language train --models llama-rope llama-rope", "llama-rope is given twice"),
    ("synthetic language train --models lama", "lama"),
    ("synthetic language train --preset huge", "huge"),
    ("synthetic language train --corpus nothing", "unknown corpus 'nothing'"),
    ("synthetic language train --corpus library --text x", "name two corpora"),
    ("synthetic language train --resume", "--folder where checkpoints are kept"),
    ("synthetic language train --text /dev/zero", "is neither a file nor a folder"),
    ("synthetic language dial --page .", "cannot write .: it is a folder"),
    ("synthetic language study", "the following arguments are required: NAME"),
    ("synthetic language study nothing", "nothing"),
    ("synthetic language study diagonal --size 1T --estimate", "1T"),
    ("reports", "the following arguments are required: COMMAND"),
    ("reports tables", "the following arguments are required: PATH"),
    ("reports tables {none}", "cannot read"),
    ("reports tables {text}", "is not JSON"),
    ("reports tables {binary}", "is not JSON"),
    ("reports tables {list}", "is not a result file"),
    ("reports tables {deep}", "nested deeper"),
    ("reports tables {loop}", "cannot read"),
    ("reports tables {nan}", "NaN is no JSON number"),
    ("reports tables {escaping}", "is damaged at kind: '../../x' is not one of"),
    ("reports tables {numbered}", "is damaged at tables[0].title: 5 is not of type 'string'"),
    ("reports tables {folder}", "no result file in"),
    ("reports tables {atlas} --format html", "invalid choice: 'html'"),
    ("reports tables {atlas} --output {text}", "cannot write"),
    ("reports tables \0", "has a null character, which no file name can hold"),
    ("reports tables {atlas} --width 3", "must be at least 20"),
    ("reports show {atlas}", "invalid choice: 'show'"),
    ("reports page", "the following arguments are required: PATH"),
    ("reports page {list}", "is not a result file"),
    ("reports page {atlas} -o {folder}", "it is a folder"),
    ("reports page {atlas} -o {atlas}", "is read, and would be overwritten"),
    ("reports compare {atlas} {atlas} --json {atlas}", "is read, and would be overwritten"),
    ("reports pictures {none} --output {folder}/pictures", "cannot read"),
    ("reports matrix {atlas}", "no result of `cemverify check --json`"),
    ("reports matrix {folder}", "no result file in"),
    ("reports compare {atlas}", "the following arguments are required: NEW"),
    ("reports compare {atlas} {none}", "cannot read"),
    ("reports compare {text} {atlas}", "is not JSON"),
    ("reports compare {atlas} {list}", "is not a result file"),
    ("reports compare {atlas} {atlas} --json {folder}", "it is a folder"),
    ("benchmarks cpu", "unknown benchmark 'cpu'"),
    ("benchmarks gpu --only nothing", "unknown stage 'nothing'"),
    ("benchmarks gpu --device cpu:7", "device 'cpu:7' is not available"),
    ("benchmarks gpu --page .", "cannot write .: it is a folder"),
]


def all_rows() -> Iterator[tuple[str, str]]:
    """Command lines with what is said of each; options of one type share a reader and take wrong values in turn."""
    for options, values in ((COUNTS, NOT_COUNTS), (POSITIVES, NOT_POSITIVES)):
        in_turn = cycle(values.items())
        for command, names in options.items():
            for name in names:
                value, sentence = next(in_turn)
                yield f"{command} {name} {value}", f"{name}: {sentence}" if value != HUGE else sentence
    for command, (value, sentence) in zip(SEEDED, cycle(NOT_SEEDS.items()), strict=False):
        yield f"{command} --seed {value}", sentence
    yield from ROWS


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files that no command can read, by the names that rows give them."""
    folder = tmp_path_factory.mktemp("bad")
    made = {"configuration": {}, "command": "c", "seed": 0, "created": "d", "duration_seconds": 1.0}
    made |= {"versions": {"python": "3", "torch": "2"}}
    made |= {"device": {"type": "cpu", "name": "n", "system": "s", "threads": 1}}
    sound = {"schema": "cemverify.result", "schema_version": 1, "kind": "atlas", "suite_version": "1"}
    sound |= {"made_by": made, "tables": [{"title": "t", "columns": ["a"], "rows": [["1"]]}]}
    contents = {
        "text": "neither JSON nor TOML",
        "list": "[1, 2]",
        "deep": "[" * 100_000 + "]" * 100_000,
        "atlas": json.dumps(sound),
        "nan": json.dumps(sound | {"payload": float("nan")}),
        "escaping": json.dumps(sound | {"kind": "../../x"}),
        "numbered": json.dumps(sound | {"tables": [{"title": 5, "columns": [], "rows": []}]}),
    }
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(content)
    (folder / "binary.json").write_bytes(b"\xff\xfe\x00{")
    (folder / "folder.json").mkdir()
    (folder / "loop.json").symlink_to("loop.json")
    names = (*contents, "binary", "folder", "loop", "none")
    return {name: str(folder / f"{name}.json") for name in names}


@pytest.mark.parametrize(
    ("line", "sentence"), [pytest.param(*row, id=row[0][:80].replace("\0", "NUL")) for row in all_rows()]
)
def test_bad_input_is_one_sentence(
    line: str,
    sentence: str,
    files: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [files[word[1:-1]] if word[1:-1] in files and word[0] == "{" else word for word in line.split(" ")]
    assert sentence in refused(words, capsys)
    assert list(tmp_path.iterdir()) == []
