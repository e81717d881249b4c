"""The answer to senseless input is one sentence and exit code 2: one row for each input."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Iterator
from pathlib import Path

import pytest

from cemverify.console.parsing import path
from docs.making.parsers import PROGRAMS, parsers
from suites.entry.rule import seen
from suites.kit.commands import refused

NO_NAMES = ("my-layer", "class", "../up", "", "naïve")
# A command line and words of the error.
ROWS = [
    # a test below asserts that every number of every command has one of these types
    ("cemverify check reference --examples 0", "must be at least 1, not 0"),
    ("cemverify check reference --examples 1.5", "'1.5' is not a whole number"),
    (f"cemverify check reference --examples {'9' * 400}", "... (400 digits)"),
    ("cemverify check reference --seconds 0", "must be a positive number, not 0"),
    ("cemverify check reference --seconds nan", "must be a positive number, not nan"),
    ("cemverify check reference --timeout 1e10", "must be at most 1,000,000, not 1e10"),
    ("cemverify check reference --timeout much", "'much' is not a number"),
    ("cemverify check reference --seed -1", "--seed: must be at least 0, not -1"),
    ("cemverify check reference --seed 4294967296", "--seed: must be at most 4,294,967,295, not 4294967296"),
    ("cemverify check reference --properties gradient/layer", "none of these properties applies to this kind"),
    ("cemverify check cemverify:reference --update-known --first", "leave out --first, --within"),
    ("cemverify check cemverify:reference --checkpoint w --layer a --quick", "--checkpoint asks everything at once"),
    ("cemverify", "the following arguments are required: COMMAND"),
    ("cemverify chekc", "invalid choice: 'chekc' (choose from 'demo', 'init', 'check', "),
    ("cemverify init --name numpy", "there is a module numpy already"),
    *((f"cemverify init --no-check --name {name}", "Python; use ") for name in NO_NAMES),
    ("cemverify init --no-check --folder text.json", "cannot be written"),
    ("cemverify check cemverify:reference --catalogue 2099.01", "there is no catalogue '2099.01' here"),
    ("cemverify claims nothing", "no claim 'nothing'"),
    ("cemverify claims 7-sign --results none.json", "is not a folder; name the one in which studies wrote"),
    ("cemverify check cemverify:reference c:d", "'c:d' is one argument too many"),
    ("cemverify check cemverify:reference --device cuda:99", "device 'cuda:99' is not available"),
    ("cemverify check cemverify:reference --memory 1", "--memory is 1"),
    ("cemverify check cemverify:reference --properties nonsense", "no property matches 'nonsense'"),
    ("cemverify check cemverify:reference --json x/y --markdown x", "x cannot be a file, and a folder for x/y"),
    ("cemverify check cemverify:reference --json x --markdown y/../x", "two outputs have the same path"),
    ("cemverify check cemverify:reference --save-counterexamples text.json", "it is not a folder"),
    ("cemverify check cemverify:reference --update-known", "--update-known needs --known"),
    ("cemverify check cemverify:reference --known k --update-known", "--update-known needs --reason"),
    ("cemverify check cemverify:reference --known k --reason because", "only with --update-known"),
    ("cemverify check reference --known k --update-known --reason b --expires soon", "'soon' is not a date like"),
    ("cemverify check reference --known k --update-known --reason b --expires 2020-01-01", "is in the past"),
    ("cemverify check cemverify:reference --on-regression fail", "--on-regression needs --baseline"),
    ("cemverify check cemverify:reference --baseline r.json", "of kind 'atlas'"),
    ("cemverify replay none.json", "cannot read"),
    ("cemverify replay r.json", "not a saved counterexample"),
    ("cemverify power --workers 99999", "must be at most 4,096, not 99999"),
    ("cemverify power --shard 3/2", "--shard 3/2 names no part"),
    ("cemverify power --cluster tcp://localhost:1 --workers 2", "give one of them"),
    ("cemverify power --cluster localhost", "'localhost' is not the address of a Dask scheduler"),
    ("cemverify power --families nonsense twaddle", "unknown family of mutants 'nonsense'; choose from attention"),
    ("cemverify power --bank examples.nobody:*", "no correct implementation is called 'examples.nobody:*'; there"),
    ("cemverify power nosuchmodule:x --no-bank", "no module 'nosuchmodule'"),
    ("synthetic examine rbf --train-points 1", "train points must be at least 2, not 1"),
    ("synthetic examine rbf --dimensions 100000000000", "GB of memory"),
    ("synthetic examine rbf --train-points 1000000000000", "GB of memory"),
    ("synthetic examine rbf --output /proc/r.json", "cannot write /proc/r.json"),
    ("synthetic examine rbf --noise 1e300", "the noise must be from 1e-30 to 1e+30, not 1e+300"),
    ("synthetic examine " + "(" * 400 + "rbf" + ")" * 400, "this cannot be read"),
    ("synthetic examine " + "+".join(["rbf"] * 400), "names 400 kernels; 100 is the most"),
    ("synthetic examine " + "9" * 400 + "*rbf", "numbers are from 1e-30 to 1e+30"),
    ("synthetic examine rbf(lengthscale=1e300)", "must be from 1e-30 to 1e+30 in size"),
    ("synthetic examine nowhere:kernel", "cannot import nowhere"),
    ("synthetic examine builtins:dict", "it must be a GPyTorch kernel"),
    ("synthetic examine builtins:exit", "exit raised SystemExit"),
    ("synthetic examine suites.synthetic.own_kernels:raises", "its kernel raised ZeroDivisionError"),
    ("synthetic examine suites.synthetic.own_kernels:misshapen", "got torch.Size([1, 1])"),
    ("synthetic examine suites.synthetic.own_kernels:nowhere", "its covariance is not finite"),
    ("synthetic examine suites.synthetic.own_kernels:indefinite", "not positive definite"),
    ("synthetic examine leaving:kernel", "kernel raised SystemExit: 0"),
    ("synthetic examine rbf --json r.json", "there is no option --json; did you mean --output?"),
    ("synthetic recursion --models cme", "unknown model family 'cme'"),
    ("synthetic recursion --models suites.synthetic.own_models:wide", "(128, 10) to shape (128, 3); one value for"),
    ("synthetic recursion --models suites.synthetic.own_models:fixed", "has no parameters to train"),
    ("synthetic recursion --models suites.synthetic.own_models:leaves", "raised SystemExit: 0"),
    ("synthetic recursion --models suites.synthetic.own_kernels:not_a_kernel", "is a int; name a class or function"),
    ("synthetic recursion --prior rbf rbf", "is given twice"),
    ("synthetic recursion --device cpu:7", "device 'cpu:7' is not available"),
    ("synthetic recursion --report dial-mlp.json --page p.md", "has no rows of a recursion study"),
    ("synthetic recursion --report dial-mlp.json", "name the page with --page"),
    ("synthetic recursion --report recursion.json --page p.md --estimate", "leave out one of them"),
    ("synthetic recursion --steps 1 100000 --estimate", "a recursion depth T is at most 256, not 100000"),
    ("synthetic recursion --report none.json --page none.json", "would be overwritten"),
    ("synthetic recursion --shard 0/2", "--shard 0/2 names no part"),
    ("synthetic recursion --preset smoke --store /proc/s", "cannot be written"),
    ("synthetic recursion --store text.json", "cannot be written"),
    ("synthetic language train --dim 1000000000", "GB of memory"),
    ("synthetic language train --models llama-rope llama-rope", "llama-rope is given twice"),
    ("synthetic language train --preset huge", "huge"),
    ("synthetic language train --corpus nothing", "unknown corpus 'nothing'"),
    ("synthetic language train --corpus library --text x", "name two corpora"),
    ("synthetic language train --resume", "--folder where checkpoints are kept"),
    ("synthetic language train --text /dev/zero", "is neither a file nor a folder"),
    ("synthetic language study nothing", "nothing"),
    ("synthetic recursion --report dial-mlp.json --page dial-mlp.json", "is read, and would be overwritten"),
    ("synthetic language study suites.synthetic.own_kernels:not_a_kernel --estimate", "is of type int; name a"),
    ("synthetic language study nowhere:STUDY --estimate", "nowhere"),
    ("reports tables none.json", "cannot read"),
    ("reports tables list.json", "is not a result file"),
    ("reports tables loop.json", "cannot read"),
    ("reports tables nan.json", "no float can hold NaN"),
    ("reports tables huge.json", "no float can hold 10000000000000000000..."),
    ("reports tables escaping.json", "is damaged at kind: '../../x' is not one of"),
    ("reports tables ragged.json --output report", "is damaged: table 't' has rows of unequal length"),
    ("reports tables timeless.json", "is damaged at made_by.duration_seconds: None is not of type 'number'"),
    ("reports tables folder.json", "no result file in"),
    ("reports tables r.json --output text.json", "cannot write"),
    ("reports tables \0", "has a null character, which no file name can hold"),
    ("reports page r.json -o folder.json", "it is a folder"),
    ("benchmarks cpu", "unknown benchmark 'cpu'"),
    ("benchmarks attention --report r.json", "--report shows a result file as it is"),
    ("benchmarks gpu --report --folder folder.json", "no stage has left anything"),
    ("benchmarks gpu --only nothing", "unknown stage 'nothing'"),
    ("benchmarks gpu --device cpu:7", "device 'cpu:7' is not available"),
]


OVERWRITTEN = "is read, and would be overwritten"
TOO_MUCH = "at most 268,435,456 bytes are read, and it has more"
COUNTEREXAMPLE = "found/gradient-mlp-silu"
CHECK = "cemverify check right:mine"
EMPTY = ("cemverify replay", f"{CHECK} --json", "synthetic recursion --store", "cemverify init --folder")
# a command with its inputs, and its options that name a file to write
OVERWRITING = (
    (CHECK, "right.py", "--json --junit --markdown"),
    ("cemverify check right.py:mine", "right.py", "--json --junit --markdown"),
    ("cemverify check package.layer:mine", "package/layer.py package/__init__.py", "--json --markdown"),
    (f"{CHECK} --known known.toml", "known.toml", "--json --junit --markdown"),
    (f"{CHECK} --baseline check.json", "check.json", "--json --junit --markdown"),
    (f"{CHECK} --properties-from own.py", "own.py right.py", "--json --junit"),
    ("cemverify check model:build --checkpoint w.safetensors --layer 0 --tokens tokens.npy",
     "w.safetensors tokens.npy model.py", "--json --markdown"),
    (f"cemverify replay {COUNTEREXAMPLE}.json", f"{COUNTEREXAMPLE}.json {COUNTEREXAMPLE}.npz {COUNTEREXAMPLE}.py",
     "--json"),
    (f"cemverify replay {COUNTEREXAMPLE}.json --implementation right:mine", "right.py", "--json"),
    ("cemverify claims 15-matched-mlp --results results", "results/second-step-mlp.json", "--json --markdown"),
    ("cemverify repair right:mine", "right.py", "--json"),
    ("cemverify power right:mine", "right.py", "--json"),
    ("reports page check.json r.json", "check.json r.json", "-o"),
    ("reports page found results", "results/second-step-mlp.json", "-o"),
    ("reports compare check.json check.json", "check.json", "--json"),
    ("benchmarks --report benchmarks.json", "benchmarks.json", "--page"),
    ("synthetic language train --text one.txt", "one.txt", "--output"),
)  # fmt: skip
ROWS += [
    # an input was once overwritten; `suites/test_targets.py` tests other names for the same file
    *(
        (f"{line} {option} {file}", OVERWRITTEN)
        for line, files, options in OVERWRITING
        for option in options.split()
        for file in files.split()
    ),
    (f"{CHECK} --save-counterexamples found --json found/../{COUNTEREXAMPLE}.json", "the name of a counterexample"),
    # an output of any kind was once replaced by a file
    (f"{CHECK} --json loop", "Too many levels of symbolic links"),
    ("synthetic recursion --report recursion.json --page to-null", "has to be a regular file"),
    ("synthetic language train --folder loop", "Too many levels of symbolic links"),
    # once an unforeseen error, or refused only after the work
    *((f"{CHECK} --{kind} {'x' * 300}", "a name of 300 bytes is too long") for kind in ("json", "junit", "markdown")),
    (f"{CHECK} --json {'x/' * 2000}x", "a path of 4,001 bytes and 2,001 parts is too long"),
    (f"cemverify init --no-check --name {'x' * 300}", "a name of 300 characters is too long"),
    (f"cemverify init --no-check --folder {'x' * 300}", "a name of 300 bytes is too long"),
    (f"synthetic language fixed-memory --tokeniser {'x' * 300}", "no tokeniser 'xxx"),
    ("cemverify replay .", "is a folder"),
    # once read until memory ran out
    *(
        (f"{line} {odd}", TOO_MUCH)
        for odd in ("zeros", "sparse")
        for line in (f"{CHECK} --baseline", f"{CHECK} --known", "reports tables", "reports page")
    ),
    ("cemverify check sparse.py:mine", TOO_MUCH),
    ("cemverify repair sparse.py:mine", TOO_MUCH),
    # an empty text was taken as a name
    *((f"{line} ", "an empty text names no file") for line in EMPTY),
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_number_of_every_command_is_read_by_what_refuses_another_word(program: str) -> None:
    for parser in parsers(program).values():
        for action in parser._actions:
            if action.type not in (None, path):
                with pytest.raises((ArgumentTypeError, ValueError)):
                    action.type("two")  # type: ignore[operator]


@pytest.fixture
def unchanged(folder: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs in the folder, where nothing may change; `here` forgets imports."""
    before = seen(folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    yield
    assert seen(folder) == before


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("line", "sentence"), [pytest.param(*row, id=row[0][:80].replace("\0", "NUL")) for row in ROWS]
)
def test_bad_input_is_one_sentence(line: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sentence in refused(line.split(" "), capsys)
