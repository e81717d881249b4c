"""Strategies of abuses: arguments, special files, overwriting, environments, signals, kills, hostile code."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.questions.coverage import covering
from docs.making.parsers import PROGRAMS, parsers
from suites.conformance.hostile import ROWS
from suites.entry.abuses import Abuse
from suites.entry.damage import damaged_bytes

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

# --- arguments, from the parsers themselves -----------------------------------------------------------------


def _words(text: str) -> list[str]:
    return text.split()


_TEXTS = (
    *("", " ", "x" * 300, "a/" * 2000, "\x1b[2J\x07", "\u03c4\u03b1\u03c5\u202e", "\udcff", "a\nb"),
    *_words("- -- * [ %s {0} $HOME ~ ../.. 1/0 2/1 1/9999999999999 0/0 cuda:99 meta reference"),
    *_words("right:mine right.py:mine right:none package.layer:mine : a:b:c .py: none:mine = #"),
    *("gradient/mlp/silu", "gradient", "9" * 4500, "rbf", "1*rbf + 0*linear", "rbf(", "(" * 500, "0.0.1", "nan"),
    *("T = 1", *_words("markov tiny smoke 2027-02-19 0001-01-01 fail right.mine:x.y os:path json:dumps")),
)
_NUMBERS = (
    *_words("0 1 2 3 -1 07 1.5 1e10 1e308 1e-308 nan inf -inf"),
    *("9" * 30, "9" * 4500, "4294967295", "4294967296", "1000000000000", "0x10", "\u0663", "1_00"),
    *("", " 1", "+1", "one"),
)
_SOUND_NUMBERS = ("1", "2", "3", "8")
# nothing outside the folder is ever written: tests may run as root
_PATHS = (
    *_words("new.json new/deeper.json new right.py found/../right.py r.json check.json known.toml found"),
    *_words("found/gradient-mlp-silu.json store corpora one.txt tokens.npy w.safetensors results benchmarks.json"),
    *_words("second-step-mlp.json some.cells.jsonl package package/layer.py model.py . loop loop/x dangling fifo"),
    *_words("socket sparse to-stdout /dev/zero /dev/null /dev/full /proc/none/x right.py/x"),
    *("x" * 255, "x" * 256, "y" * 230 + ".json", "a/" * 2000, "", "\udcff.json", "~"),
    *(
        "to-null",
        "found/to-right.py",
        "\x1b[2J.json",
        "new\nline.json",
        *_words("/dev/urandom r.json/ ./r.json new.md"),
    ),
)
_MADE = {
    "loop": "-> loop",
    "dangling": "-> nowhere",
    "fifo": "fifo",
    "socket": "socket",
    "sparse": "sparse",
    "to-stdout": "-> /proc/self/fd/1",
    "to-null": "-> /dev/null",
    "found/to-right.py": "-> ../right.py",
}
# positional arguments that lead each command past its parser
_SOUND: Mapping[str, tuple[tuple[str, ...], ...]] = MappingProxyType(
    {
        "cemverify check": (("right:mine",), ("right.py:mine",), ("package.layer:mine",), ("reference",)),
        "cemverify replay": (("found/gradient-mlp-silu.json",),),
        "cemverify claims": ((), ("15-matched-mlp",)),
        "cemverify power": ((), ("right:mine",)),
        "cemverify init": (("--no-check",), ("--no-check", "--name", "other")),
        "cemverify repair": (("right:mine",), ("right.py:mine", "--json", "new.json")),
        "cemverify list": ((), ("gradient/mlp/silu",)),
        "cemverify demo": ((),),
        "cemverify completion": (("bash",),),
        "reports compare": (("r.json", "check.json"), ("check.json", "check.json")),
        "reports page": (("r.json", "check.json"), ("benchmarks.json",)),
        "reports tables": (("r.json",), (".",), ("recursion.json", "benchmarks.json")),
        "reports pictures": (("benchmarks.json",), ("r.json",)),
        "reports matrix": (("check.json",),),
        "benchmarks": (("--report", "benchmarks.json"), ()),
        "benchmarks gpu": (("--report",), ("--folder", "new")),
        "synthetic examine": (("rbf",),),
        "synthetic atlas": ((),),
        "synthetic recursion": (("--preset", "smoke"), ("--store", "new")),
        "synthetic language train": (("--preset", "smoke"), ("--text", "one.txt")),
        "synthetic language second-step": (("--estimate",), ("--cells", "some.cells.jsonl")),
        "synthetic language dial": (("--estimate",),),
        "synthetic language scale": (("second-step-mlp.json",),),
        "synthetic language study": (("diagonal",), ("recursion",)),
    }
)


_ENDLESS = ("help", "watch")  # which exits while it reads, and goes on until a signal


@cache
def _commands() -> Mapping[str, tuple[argparse.Action, ...]]:
    """What every command can be given, by the words that begin it."""
    commands = {}
    for program in PROGRAMS:
        for words, parser in parsers(program).items():
            actions = [a for a in parser._actions if not isinstance(a, argparse._SubParsersAction)]
            commands[words.removeprefix("python -m ")] = tuple(a for a in actions if a.dest not in _ENDLESS)
    return MappingProxyType(commands)


def _value(action: argparse.Action) -> st.SearchStrategy[str]:
    pools: list[Sequence[str]] = [_TEXTS]
    if action.choices is not None:
        pools = [[str(choice) for choice in action.choices]] * 9 + pools
    elif getattr(action.type, "__name__", "") in ("path", "Path"):
        pools = [_PATHS] * 9 + pools
    elif action.type is not None:
        pools = [_SOUND_NUMBERS] * 9 + [_NUMBERS] * 5 + pools
    return st.sampled_from(pools).flatmap(st.sampled_from)


@st.composite
def arguments(draw: st.DrawFn) -> Abuse:
    """Any options of any command, with sound and unsound values."""
    command = draw(st.sampled_from(sorted(_commands())))
    actions = _commands()[command]
    words = command.split()
    sound = draw(st.integers(0, 3)) and command in _SOUND
    if sound:
        words += draw(st.sampled_from(_SOUND[command]))
    options = [a for a in actions if a.option_strings or not sound]
    for action in draw(st.lists(st.sampled_from(options), max_size=4)) if options else ():
        if action.option_strings:
            words.append(action.option_strings[-1])
        if action.nargs == 0:
            continue
        most = 3 if action.nargs in ("+", "*") else 1
        words += draw(st.lists(_value(action), min_size=1, max_size=most))
    return Abuse("arguments", tuple(words), made=_MADE, changed=_written(words, _MADE))


# options whose values are written; what nothing reads may be overwritten
_WRITES = ("--json", "--junit", "--markdown", "--output", "-o", "--page", "--save-counterexamples",
           "--folder", "--cells", "--store", "--corpora")  # fmt: skip


def _written(words: Sequence[str], made: Mapping[str, str]) -> tuple[str, ...]:
    """What a command line says that it writes and does not say that it reads; "./" is everything."""
    options = [""] + [word if word.startswith("-") else "" for word in words[:-1]]
    last = ""
    written, read = [], []
    for word, before in zip(words, options, strict=True):
        last = before or last
        if word.startswith("-"):
            continue
        place = _place(word, made)
        updated = last in ("--cells", "--folder") or (last == "--known" and "--update-known" in words)
        if before in _WRITES or updated:
            written.append(place)
            if before == "--page":  # its readings and pictures lie beside it
                stem = os.path.splitext(place)[0]
                written += [f"{stem}.json", f"{stem}-"]
        # a name of a module, or of an implementation in one, is read as its file
        if before not in _WRITES and not updated:
            module = word.partition(":")[0].replace(".layer", "/layer").removesuffix(".py")
            read += [place, _place(f"{module}.py", made)]
    return tuple(place for place in written if place not in read and place != ".")


def _place(path: str, made: Mapping[str, str]) -> str:
    """Where a path leads to, without links and detours."""
    for _ in range(9):
        path = os.path.normpath(path or ".")
        link = made.get(path, "").removeprefix("-> ")
        if not made.get(path, "").startswith("-> "):
            break
        path = os.path.join(os.path.dirname(path), link)
    return path


_TRAINED = "cemverify check model:build --checkpoint w.safetensors --layer 0"

# --- special files ------------------------------------------------------------------------------------------

_ODD_INPUTS = ("fifo", "folder", "sparse", "socket", "-> /dev/zero", "-> /dev/urandom", "-> /dev/null", "-> nowhere",
               "-> .", "-> /proc/self/mem", "-> /proc/self/fd/1", "-> /dev/full")  # fmt: skip
_ODD_OUTPUTS = ("fifo", "folder", "socket", "-> /dev/full", "-> /dev/null", "-> nowhere/at/all", "-> /proc/none/x",
                "-> /proc/self/fd/1", "-> /proc/self/fd/2", "-> /proc/self/fd/0", "-> /proc/self/fd/99",
                "-> right.py", "-> new-too", "-> .", "-> /dev/fd/1")  # fmt: skip
_READING = (
    *("reports tables IN", "reports page IN -o new.html", "reports compare IN r.json", "reports compare r.json IN"),
    *("reports pictures IN --output new", "reports matrix IN", "benchmarks --report IN"),
    *("cemverify check right:mine --known IN", "cemverify check right:mine --baseline IN", "cemverify replay IN"),
    *(
        "cemverify check IN:mine",
        "cemverify check IN/x:mine",
        "cemverify claims --results IN",
    ),
    *("cemverify check model:build --checkpoint IN --layer 0", "synthetic language scale IN"),
    "cemverify check model:build --checkpoint w.safetensors --layer 0 --tokens IN",
    *(
        "synthetic language train --text IN",
        "synthetic language second-step --cells IN",
        "cemverify power --store IN",
    ),
    *("cemverify check right:mine --known IN --update-known --reason because", "cemverify repair IN:mine"),
    "cemverify check right:mine --properties-from IN",
    *("cemverify replay found/gradient-mlp-silu.json --properties-from IN", "benchmarks gpu --report --folder IN"),
)
_WRITING = (
    *("cemverify check right:mine --json OUT", "cemverify check right:mine --junit OUT --markdown new.md"),
    *("cemverify check right:mine --markdown OUT", "cemverify check right:mine --save-counterexamples OUT"),
    *("cemverify claims 15-matched-mlp --json OUT", "cemverify claims 15-matched-mlp --markdown OUT --json new.json"),
    *("cemverify replay found/gradient-mlp-silu.json --json OUT", "cemverify list --json OUT"),
    *("cemverify repair right:mine --json OUT", "cemverify power right:mine --store OUT --json new.json"),
    *("synthetic language study diagonal --page OUT --store new", "benchmarks gpu --report --folder OUT"),
    *("synthetic language second-step --cells OUT --page new.md", "reports page r.json -o OUT"),
    *("reports tables r.json --output OUT", "reports compare r.json r.json --json OUT"),
    "reports matrix check.json --output OUT",
    *("reports pictures benchmarks.json --output OUT", "benchmarks --report benchmarks.json --page OUT"),
    *("synthetic language scale second-step-mlp.json --page OUT", "cemverify init --no-check --folder OUT"),
    *("cemverify init --no-check --folder OUT/deeper", "cemverify power --json OUT --store new"),
    "synthetic atlas --output OUT",
    *("synthetic recursion --preset smoke --page OUT --output new.json", "synthetic examine rbf --output OUT"),
    *("synthetic language train --folder OUT --output new.json", "synthetic language train --corpora OUT"),
    *("cemverify check right:mine --json OUT/x.json", "cemverify check right:mine --json OUT --junit OUT/x.xml"),
)  # fmt: skip


@st.composite
def special(draw: st.DrawFn) -> Abuse:
    """An input or an output that is no regular file."""
    line, odd = draw(
        st.tuples(st.sampled_from(_READING), st.sampled_from(_ODD_INPUTS))
        | st.tuples(st.sampled_from(_WRITING), st.sampled_from(_ODD_OUTPUTS))
    )
    name = draw(st.sampled_from(("odd", "odd.json", "odd.py", "odd.safetensors", "odd.npy")))
    words = tuple(line.replace("IN", name).replace("OUT", name).split())
    return Abuse("special files", words, made={name: odd}, changed=_written(words, {name: odd}))


# --- environments -------------------------------------------------------------------------------------------

_CHECKED = "--properties rejection/mlp/zero-steps --examples 4 --workers 1"
# commands as short as they can be, each with its exit code and the file that it writes (so few examples leave mutants
# alive, and so small a language model is no better than bigrams)
WORK: Mapping[str, tuple[int, str]] = MappingProxyType(
    {
        "cemverify list --help": (0, ""),
        "cemverify list": (0, ""),
        f"cemverify check reference {_CHECKED} --json BOX/new.json": (0, "new.json"),
        "cemverify claims 15-matched-mlp --json BOX/new.json": (0, "new.json"),
        "cemverify power --families recursion --seeds 1 --examples 2 --no-sweep --no-bank --workers 0 "
        "--store BOX/new "
        "--json BOX/new.json": (1, "new.json"),
        "cemverify replay BOX/none.json": (2, ""),
        "reports tables BOX/r.json": (0, ""),
        "synthetic examine rbf --train-points 12 --test-points 6 --output BOX/new.json": (0, "new.json"),
        "synthetic recursion --preset smoke --models cem --steps 1 --seeds 1 --train-points 64 --workers 0 "
        "--store BOX/new --output BOX/new.json": (0, "new.json"),
        "synthetic language train --preset tiny --models llama-rope --steps 2 --dim 8 --layers 1 --heads 1 "
        "--context 8 --batch 2 --corpus markov --length 2000 --workers 1 --corpora BOX/new "
        "--output BOX/new.json": (1, "new.json"),
    }
)
_QUICK = (
    *("cemverify list", "cemverify check right:mine --json new.json --markdown new.md"),
    "cemverify claims --json new.json",
    *("cemverify replay found/gradient-mlp-silu.json --json new.json", "reports tables . --output new"),
    *("reports page . -o new.html", "reports pictures benchmarks.json --output new"),
    "synthetic recursion --preset smoke --store store",
    *("benchmarks --report benchmarks.json --page new.md", "cemverify init --no-check"),
    "cemverify list --contract",
    *("synthetic language study diagonal --estimate", "reports matrix check.json"),
    *("cemverify list gradient/mlp/silu", "cemverify repair right:mine --json new.json"),
    *("cemverify check right:mine --github --junit new.xml", "reports tables r.json --format latex"),
    *(f"{_TRAINED} --tokens tokens.npy --json new.json", "cemverify check right:mine --suggest"),
)  # fmt: skip
_STREAMS = tuple((out, err) for out in ("open", "full", "closed") for err in ("open", "full", "closed"))
# in these every command does its work
_MILD: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "line": tuple(WORK),
        "streams": _STREAMS,
        "folder": ("usual", "read-only", "deleted"),
        "PYTHONIOENCODING": ("utf-8", "ascii", "latin-1"),
        "COLUMNS": (None, "20"),
        "HOME": ("usual", None),
    }
)
_HARSH: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "line": _QUICK,
        "streams": _STREAMS,
        "folder": ("usual", "deleted"),
        "TMPDIR": ("usual", "/none", "/proc", ""),
        "HOME": ("usual", None, "/proc", "/none"),
        "COLUMNS": (None, "0", "-5", "1", "x", "99999999999"),
        "TERM": (None, "dumb", "xterm", "\x1b[2J"),
        "NO_COLOR": (None, "1"),
        "FORCE_COLOR": (None, "1"),
        "files": (None, 8, 12, 64),
        "bytes": (None, 0, 1000),
        "TZ": (None, "Nowhere/None", "UTC+25"),
        "PYTHONIOENCODING": (None, "ascii", "latin-1"),
        "CI": (None, "true"),
    }
)


def environments(factors: Mapping[str, tuple[object, ...]]) -> list[Abuse]:
    """Commands in environments, so that every two values of any two factors meet."""
    rows = []
    for array in covering(tuple(len(values) for values in factors.values())):
        row: dict[str, Any] = {name: values[i] for (name, values), i in zip(factors.items(), array, strict=True)}
        line, streams, folder = (row.pop(name) for name in ("line", "streams", "folder"))
        limits = {name: row.pop(name, None) for name in ("files", "bytes")}
        work = factors is _MILD
        code, file = WORK[line] if work else (None, "")
        abuse = Abuse(
            "work" if work else "environments",
            tuple(line.split()),
            environment={name: value for name, value in row.items() if value != "usual"},
            limits={name: value for name, value in limits.items() if value is not None},
            streams=streams,
            folder=folder,
            real=work,
            ends=code,
            writes=file,
        )
        rows.append(abuse)
    return rows


# --- signals ------------------------------------------------------------------------------------------------

_SIGNALLED = """
reports page . -o new.html
reports pictures benchmarks.json --output new
cemverify claims 2-exact-descent
cemverify claims 15-matched-mlp --json new.json
synthetic examine rbf --train-points 200 --test-points 50
cemverify list gradient/mlp/silu
benchmarks --report benchmarks.json --page new.md
cemverify init --no-check
synthetic recursion --preset smoke --models cem --steps 1 --seeds 1 --workers 0 --store new --output new.json
cemverify check right:mine --properties gradient/mlp/silu --examples 5 --json new.json --workers 1
cemverify check right:mine --properties gradient/mlp/silu --examples 5 --workers 1 --watch
cemverify repair right:mine --properties gradient/mlp/silu --examples 5 --json new.json --workers 1
cemverify power right:mine --store new --workers 1 --json new.json --examples 4
"""


def signalled(kind: str, numbers: Sequence[signal.Signals]) -> st.SearchStrategy[Abuse]:
    """One of these signals at a random instant of a command that does its work."""

    @st.composite
    def drawn(draw: st.DrawFn) -> Abuse:
        line, number = draw(st.sampled_from(_SIGNALLED.strip().splitlines())), draw(st.sampled_from(numbers))
        return Abuse(kind, tuple(line.split()), signals=(int(number), draw(st.integers(5, 2500)) / 1000), real=True)

    return drawn()


# --- code that does harm: in a call, as it is imported, or as a property of one's own judges -----------------

# A line each. After these nothing right can be answered.
_ENDS = r"""
raise ValueError('no \x1b[2J')
raise Unspeakable
raise SystemExit('1 hold, 0 violated')
os._exit(0)
os.abort()
exec('(' * 500)
os.kill(os.getpid(), signal.SIGSTOP)
bytearray(2**42)
deeper(deeper)
"""
# After these something right may be answered.
_GOES_ON = r"""
print('1 hold, 0 violated \x1b[2J\r')
os.write(2, b'error: \x1b[2J\n')
os.closerange(0, 99)
os.remove(FILE)
open(FILE, 'w').write('(')
os.utime(FILE, (0, 0))
os.setsid()
os.fork()
ends_its_parent and ends_its_parent.pop()(os.getppid(), signal.SIGKILL)
subprocess.Popen(['sleep', '600'], start_new_session=True)
threading.Thread(target=time.sleep, args=(600,)).start()
sys.stdout = sys.stderr = None
sys.modules.clear()
time.time = time.monotonic = None
atexit.register(print, 'error: it was right')
"""
# These are what a property of one's own says, in place of what it got, what is due and how far apart they may be.
_STATEMENTS = """
None
right
right, None, 0
right, right, float('nan')
right, right, -1, 'yes'
{}, {}, {}
right[..., :0], right, 0
"""
_MODULE = """\
import atexit, os, signal, subprocess, sys, threading, time

from cemverify import layer_property, reference

FILE = os.path.abspath(__file__)
mine = reference
ends_its_parent = [os.kill]  # once: an orphan's parent is whoever tries all this


class Unspeakable(BaseException):
    def __str__(self):
        raise self


def deeper(f):
    return f(f)


@layer_property(claim="It is itself.", source="us", of="mlp", options={{}}, name="itself")
def itself(layer, question):
    right = layer.update(question)
    {judging}
    return {said}


{importing}
"""
_USUAL = {"importing": "pass", "judging": "pass", "said": "right, right, layer.roundoff(question)"}
_LINE = "cemverify check {} --examples 5 --seconds 2 --timeout 2 --workers 1 --json new.json --properties {}"


@st.composite
def hostile(draw: st.DrawFn) -> Abuse:
    """A check of an implementation that does one harm."""
    more = draw(st.sampled_from(("", " --github", " --black-box", " --save-counterexamples new")))
    if draw(st.booleans()):
        name = draw(st.sampled_from(sorted(ROWS)))
        line = _LINE.format(f"suites.conformance.hostile:{name}", "gradient/attention/plain") + more
        child = {"CEMVERIFY_TEST_CHILD": "child"}  # what one of them writes
        return Abuse(
            "hostile",
            tuple(line.split()),
            environment=child,
            real=True,
            wrong=Verdict.HOLDS not in ROWS[name].verdicts,
        )
    place, ends = draw(st.sampled_from(sorted(_USUAL))), draw(st.booleans())
    deeds = _STATEMENTS if place == "said" else _ENDS if ends else _GOES_ON
    module = _MODULE.format(**{**_USUAL, place: draw(st.sampled_from(deeds.strip().splitlines()))}).encode()
    if draw(st.integers(0, 4)) == 0:
        module, ends = draw(damaged_bytes(module)), False
    asked = "gradient/mlp/silu" if place == "importing" else "own/itself --properties-from harm.py"
    return Abuse(
        "hostile",
        tuple((_LINE.format("harm:mine", asked) + more).split()),
        files={"harm.py": module.hex()},
        changed=("harm.py",),
        real=True,
        wrong=ends and place == "importing",
    )


# --- all of them --------------------------------------------------------------------------------------------

SHARES: Mapping[str, float] = MappingProxyType(
    {
        "arguments": 0.55,
        "special files": 0.21,
        "environments": 0.11,
        "work": 0.02,
        "signals": 0.04,
        "kills": 0.02,
        "hostile": 0.05,
    }
)


def draw_all(count: int, start: int) -> list[Abuse]:
    """So many abuses, at least one of each kind, the same for the same seed.

    Args:
        start: the seed.
    """
    strategies: Mapping[str, st.SearchStrategy[Abuse]] = {
        "arguments": arguments(),
        "special files": special(),
        "signals": signalled("signals", SIGNALS),
        "kills": signalled("kills", [signal.SIGKILL]),
        "hostile": hostile(),
    }
    shares = {kind: max(1, round(share * count)) for kind, share in SHARES.items()}
    abuses = [abuse for kind, strategy in strategies.items() for abuse in _drawn(strategy, shares[kind], start)]
    for kind, factors in (("environments", _HARSH), ("work", _MILD)):
        rows = environments(factors)
        first = start * shares[kind] % len(rows)
        abuses += [*rows, *rows][first : first + min(shares[kind], len(rows))]
    return abuses


def _drawn(strategy: st.SearchStrategy[Abuse], count: int, start: int) -> list[Abuse]:
    abuses: dict[str, Abuse] = {}

    @seed(start)
    @settings(max_examples=3 * count, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(strategy)
    def keep(abuse: Abuse) -> None:
        abuses[repr(abuse)] = abuse

    keep()
    return list(abuses.values())[:count]
