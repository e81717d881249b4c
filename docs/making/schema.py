"""Every key of every result file as Markdown, from the JSON Schema that tests check them against."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

SCHEMA = Path(__file__).parents[2] / "cemverify" / "results" / "result.schema.json"


class Row(NamedTuple):
    """A key of a result file."""

    key: str  # from the top, for instance `properties[].verdict`
    value: str  # its type, or the words that are allowed
    required: bool  # whether it is always there


def kinds() -> dict[str, list[Row]]:
    """The keys of every kind of result file, and under "" those that all kinds have."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    found = {"": list(rows(schema))}
    for branch in schema["allOf"]:
        kind = branch["if"]["properties"]["kind"]
        for name in [kind["const"]] if "const" in kind else kind["enum"]:
            found.setdefault(name, []).extend(rows(branch["then"]))
    return found


def rows(schema: Mapping[str, Any], above: str = "") -> Iterator[Row]:
    """The keys of an object and of all objects below it."""
    required = schema.get("required", [])
    named = schema.get("properties", {})
    for name in [*named, *(name for name in required if name not in named)]:
        below = named.get(name, {})
        yield Row(f"{above}{name}", _value(below), name in required)
        yield from rows(below, f"{above}{name}.")
        if isinstance(inner := below.get("items"), dict):
            yield from rows(inner, f"{above}{name}[].")
    if isinstance(other := schema.get("additionalProperties"), dict):
        yield Row(f"{above}*", _value(other), False)
        yield from rows(other, f"{above}*.")


def _value(schema: Mapping[str, Any]) -> str:
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return ", ".join(json.dumps(word) for word in schema["enum"])
    kinds = schema.get("type", "")
    words = ", ".join(kinds) if isinstance(kinds, list) else str(kinds)
    if words == "array" and isinstance(inner := schema.get("items"), dict) and (of := _value(inner)):
        words = f"array of {of}"
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{words} from {low} to {high}"
    return words if low is None else f"{words}, at least {low}"


def markdown() -> str:
    """A section with a table for each kind of result file."""
    lines = []
    for kind, keys in kinds().items():
        lines += [f"## `{kind}`" if kind else "## Every file", "", "| key | value | always there |", "|---|---|---|"]
        lines += [f"| `{row.key}` | {row.value} | {'yes' if row.required else ''} |" for row in keys]
        lines.append("")
    return "\n".join(lines)
