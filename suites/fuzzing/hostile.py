"""Implementations and properties of one's own that do harm: in a call, as they are imported, or as they judge."""

from __future__ import annotations

from hypothesis import strategies as st

from suites.conformance.hostile import AGAINST_JUDGES, BESIDES, INSTEAD, WRONGLY
from suites.fuzzing.abuses import Abuse

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
_IN_A_CALL = {**{name: cause is not None for name, (_, cause, _) in {**BESIDES, **INSTEAD}.items()},
              **dict.fromkeys((*WRONGLY, *AGAINST_JUDGES), True)}  # fmt: skip


@st.composite
def hostile(draw: st.DrawFn) -> Abuse:
    """A check of an implementation that does one harm."""
    more = draw(st.sampled_from(("", " --github", " --black-box", " --save-counterexamples new")))
    if draw(st.booleans()):
        name = draw(st.sampled_from(sorted(_IN_A_CALL)))
        line = _LINE.format(f"suites.conformance.hostile:{name}", "gradient/attention/plain") + more
        child = {"CEMVERIFY_TEST_CHILD": "child"}  # what one of them writes
        return Abuse("hostile", tuple(line.split()), environment=child, real=True, wrong=_IN_A_CALL[name])
    place, ends = draw(st.sampled_from(sorted(_USUAL))), draw(st.booleans())
    deeds = _STATEMENTS if place == "said" else _ENDS if ends else _GOES_ON
    module = _MODULE.format(**{**_USUAL, place: draw(st.sampled_from(deeds.strip().splitlines()))})
    asked = "gradient/mlp/silu" if place == "importing" else "own/itself --properties-from harm.py"
    return Abuse(
        "hostile",
        tuple((_LINE.format("harm:mine", asked) + more).split()),
        files={"harm.py": module.encode().hex()},
        changed=("harm.py",),
        real=True,
        wrong=ends and place == "importing",
    )
