"""Strategies that damage the content of a file: its bytes, or what its JSON says."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

from hypothesis import strategies as st

from cemverify.runs.plain import digest

# what a disk, a merge or an editor leaves in the middle of a file
_JUNK = (b"", b"\x00", b"\xff\xfe", b"\r\n", b'"', b"[", b"{", b"}", b"NaN", b'"\\ud800"', b"[" * 5000, b"9" * 5000)


@st.composite
def damaged_bytes(draw: st.DrawFn, sound: bytes) -> bytes:
    """The content truncated, or with a stretch of it replaced, or with some of its bytes changed."""
    at = draw(st.integers(0, max(len(sound) - 1, 0)))
    match draw(st.sampled_from(("truncated", "replaced", "changed"))):
        case "truncated":
            return sound[:at]
        case "replaced":
            junk = draw(st.sampled_from(_JUNK) | st.binary(max_size=20))
            return sound[:at] + junk + sound[at + draw(st.integers(0, 40)) :]
    changed = bytearray(sound)
    for _ in range(draw(st.integers(1, 4))):
        if changed:
            changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
    return bytes(changed)


def _nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


# values of every type, and at the edges of each
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, -(2**70), 10**400, 0.5, -1e308, float("nan"), float("inf")),
    *("", "x", "\ud800", "\x00", "../../x", "ταυ\n\u202e", "float64", "device", "nan", "9" * 5000, "x" * 5000),
    *([], {}, [None], [[]], {"x": None}, ["x"] * 300, _nested(50), _nested(200)),
)


@st.composite
def damaged_json(draw: st.DrawFn, sound: Any) -> bytes:
    """The content as JSON, with one to three of its values replaced, taken out, doubled or moved."""
    content = copy.deepcopy(sound)
    for _ in range(draw(st.integers(1, 3))):
        content = _with_damage(draw, content)
    return json.dumps(content).encode("utf-8", "surrogatepass")


def _with_damage(draw: st.DrawFn, content: Any) -> Any:
    """Walks down to a place that is drawn, and damages it."""
    keys = list(content) if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ()
    if not keys or draw(st.integers(0, 9)) == 0:
        return copy.deepcopy(draw(st.sampled_from(_VALUES)))
    key = draw(st.sampled_from(keys))
    match draw(st.integers(0, 9)):
        case 0:
            del content[key]
        case 1 if isinstance(content, dict):
            content["more"] = content.pop(key)
        case 1:
            content.append(copy.deepcopy(content[key]))
        case 2:
            content[key] = copy.deepcopy(content[draw(st.sampled_from(keys))])
        case _:
            content[key] = _with_damage(draw, content[key])
    return content


def with_digest(damaged: bytes) -> bytes:
    """The damaged content of a cell with a digest that fits; NaN and surrogates have none."""
    content = json.loads(damaged)
    if isinstance(content, dict):
        content.pop("digest", None)
        with contextlib.suppress(ValueError, RecursionError):
            content["digest"] = digest(content)
    return json.dumps(content).encode("utf-8", "surrogatepass")
