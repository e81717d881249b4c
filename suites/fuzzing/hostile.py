"""Implementations and properties of one's own that do harm: what they do, where, and at which call."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hypothesis import strategies as st

from suites.fuzzing.abuses import Abuse

# A line each. After these nothing right can be answered.
_ENDS = r"""
raise ValueError('no \x1b[2J')
raise KeyboardInterrupt
raise Unspeakable
raise MemoryError
raise SystemExit('1 hold, 0 violated')
sys.exit(0)
os._exit(0)
os._exit(5)
os.abort()
exec('(' * 500)
os.kill(os.getpid(), signal.SIGKILL)
os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(600)
while True: pass
bytearray(2**42)
torch.zeros(2**40)
deeper(deeper)
"""
_HANGS = ("time.sleep(600)", "while True: pass")
# After these something right may be answered.
_GOES_ON = r"""
print('1 hold, 0 violated \x1b[2J\r')
os.write(1, b'1 hold\x1b[2J\n')
os.write(2, b'error: \x1b[2J\n')
os.closerange(0, 99)
os.chdir('/')
os.environ.clear()
os.remove(FILE)
open(FILE, 'w').write('(')
open(FILE, 'a').write('mine = None\n')
os.utime(FILE, (0, 0))
os.setsid()
os.fork()
os.nice(19)
os.kill(os.getppid(), signal.SIGINT)
os.kill(os.getppid(), signal.SIGSTOP)
os.kill(os.getppid(), signal.SIGKILL)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(['sleep', '600'])
subprocess.Popen(['sleep', '600'], start_new_session=True)
threading.Thread(target=time.sleep, args=(600,)).start()
sys.stdout = sys.stderr = None
sys.setrecursionlimit(60)
sys.settrace(None)
sys.modules.clear()
gc.disable()
torch.softmax = None
torch.set_default_dtype(torch.float16)
torch.set_grad_enabled(False)
time.time = time.monotonic = None
json.dumps = pickle.dumps = None
warnings.warn('\x1b[2J')
atexit.register(print, 'error: it was right')
"""
# These stand in the place of the right answer.
_ANSWERS = """
None
'right'
[]
{'x': right}
lambda: right
iter(())
x
right[..., :0]
right * 1.5
right + float('nan')
float('inf') * right
right.int()
right.to(torch.complex128)
right.to_sparse()
right.expand(2, *right.shape)
torch.zeros(0)
torch.empty(right.shape, device='meta')
"""
# These are what a property of one's own says, in place of what it got, what is due and how far apart they may be.
_STATEMENTS = """
None
right
right, right
right, None, 0
right, right, float('nan')
right, right, -1, 'yes'
{}, {}, {}
right[..., :0], right, 0
"""

_HEAD = """\
import atexit, gc, json, os, pickle, signal, subprocess, sys, threading, time, warnings

import torch

from cemverify import implementation, layer_property
from cemverify.conformance.implementations import reference

FILE, calls = os.path.abspath(__file__), []


class Unspeakable(BaseException):
    def __str__(self):
        raise self


def deeper(f):
    return f(f)


def mlp(x, h, w, c):
    calls.append(0)
    if len(calls) == {call}:
        {in_call}
    right = reference.mlp(x, h, w, c)
    return {answer} if len(calls) >= {call} else right


mine = implementation(mlp=mlp)


@layer_property(claim="It is itself.", source="us", of="mlp", options={{}}, name="itself")
def itself(layer, question):
    right = layer.update(question)
    {in_property}
    return {said}


{at_import}
"""
_USUAL: Mapping[str, str] = MappingProxyType(
    {"in_call": "pass", "answer": "right", "in_property": "pass", "at_import": "pass",
     "said": "right, right, layer.roundoff(question)"}
)  # fmt: skip

_LINE = "cemverify check harm:mine --examples 5 --seconds 2 --timeout 2 --workers 1 --json new.json"


@st.composite
def hostile(draw: st.DrawFn) -> Abuse:
    """A check of a module that does one harm."""
    place = draw(st.sampled_from(("at_import", "in_call", "in_call", "answer", "in_property", "said")))
    ends = draw(st.booleans())
    pool = {"answer": _ANSWERS, "said": _STATEMENTS}.get(place, _ENDS if ends else _GOES_ON)
    deeds = pool.strip().splitlines()
    if place == "at_import":
        deeds = [deed for deed in deeds if deed not in _HANGS]
    deed = draw(st.sampled_from(deeds))
    wrong = place == "answer" or (ends and place in ("at_import", "in_call"))
    # the first call is made before anything is asked; a later one is in the midst of it
    module = _HEAD.format(**{**_USUAL, place: deed}, call=draw(st.sampled_from((1, 2, 5))))
    properties = "own/itself --properties-from harm.py" if place in ("in_property", "said") else "gradient/mlp/silu"
    more = draw(st.sampled_from(("", "--github", "--black-box", "--save-counterexamples new")))
    line = f"{_LINE} --properties {properties} {more}"
    files = {"harm.py": module.encode().hex()}
    return Abuse("hostile", tuple(line.split()), files=files, changed=("harm.py",), real=True, wrong=wrong)
