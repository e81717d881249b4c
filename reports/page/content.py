"""The content of the page: an answer, one section for each question, the matrix, the tables, the provenance."""

from __future__ import annotations

import shlex
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cemverify.conformance.judging.verdicts import facts_of
from cemverify.console.escaping import brief, one_line, visible
from cemverify.results.envelope import Cell, Table
from cemverify.results.tables import Strong, cell_text, is_numeric
from reports.collect import ResultFile, complete, tables_of
from reports.kinds import headline
from reports.kinds.check import families, tallies
from reports.page.listing import listings
from reports.pictures import pictures_of
from synthetic.figures.drawing import Picture, inline
from synthetic.figures.sheets import printed

# Characters, to keep a page under 3 MB.
TABLES_BUDGET = 1_100_000
PICTURES_BUDGET = 900_000
MATRIX_BUDGET = 600_000
MOST_VIOLATIONS = 24
MOST_PICTURED = 12

# In the order of the page: the kind of result, and its question; a question without a result is left out.
_QUESTIONS = (
    ("check", "holds", "How many properties hold?"),
    ("power", "strength", "How much is this pass worth?"),
    ("recursion", "recursion", "Did more steps help?"),
    ("language", "language", "What did the language models do?"),
    ("readings", "published", "What do the stored comparisons say?"),
    ("claims", "paper", "Is the paper right?"),
    ("benchmarks", "speed", "How fast is it?"),
)
# The CSS class of a cell, and of a square in it.
LETTERS = {"holds": "h", "violated": "v", "inconclusive": "i", "suite error": "e", "not offered": "n"}


Violation = Mapping[str, Any]  # a violated property as in its file, with its smallest case and a command


def page_of(sources: Sequence[ResultFile]) -> dict[str, Any]:
    """The page of some results: all that the template needs, which shortens long texts and escapes everything."""
    # a study's comparisons, beside the study itself, say nothing more
    studies = {_run(source) for source in sources if source.content["kind"] != "readings"}
    sources = [source for source in sources if source.content["kind"] != "readings" or _run(source) not in studies]
    checks = [source for source in sources if source.content["kind"] == "check"]
    for source in checks:
        with complete(source):
            families(source.content)
    answer, good = _answer(checks, sources)
    groups = [group for source in checks for group in _groups(source, list(_violations(source)))]
    rows = [(source.content["implementation"], tallies(source.content)) for source in checks]
    properties = sum(len(tally["entries"]) for _, families in rows for tally in families.values())
    tables, left_out = _tables(sources)
    return {
        "title": _title(checks),
        "answer": answer,
        "good": good,
        "sections": list(_sections(sources)),
        "groups": groups[:MOST_VIOLATIONS],
        "more_violations": sum(len(group["members"]) for group in groups[MOST_VIOLATIONS:]),
        "matrix_families": list(dict.fromkeys(name for _, families in rows for name in families)),
        "matrix": rows,
        "squares": 22 * properties <= MATRIX_BUDGET,
        "tables": tables,  # each with its provenance
        "left_out": left_out,
        "listings": list(listings(checks)),
        "sources": sources,
    }


def _run(source: ResultFile) -> tuple[Any, ...]:
    """The run that made a result."""
    maker = source.content.get("made_by", {})
    return maker.get("command"), maker.get("created")


def _title(checks: Sequence[ResultFile]) -> str:
    names = list(dict.fromkeys(source.content["implementation"] for source in checks))
    return f"cemverify: {names[0]}" if len(names) == 1 else "cemverify: report"


def _answer(checks: Sequence[ResultFile], sources: Sequence[ResultFile]) -> tuple[str, bool | None]:
    if not checks and len(sources) > 1:
        kinds = [str(source.content["kind"]) for source in sources]
        counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        return f"{len(sources)} results, none of them a verdict on an implementation: {counted}.", None
    if not checks:
        with complete(sources[0]):
            return headline(sources[0].content), None
    counts = [source.content["counts"] for source in checks]
    run, missing = sum(count["run"] for count in counts), sum(count.get("not_asked", 0) for count in counts)
    holds, violated = sum(count["holds"] for count in counts), sum(count["violated"] for count in counts)
    if len(checks) == 1:
        name = brief(checks[0].content["implementation"], 80)
        if violated:
            return f"No: {violated} of {run} properties of {name} are violated.", False
        if holds == run and run and not missing:
            return f"Yes: all {run} properties of {name} that were run hold.", True
        rest = f"; {missing} were not asked" if missing else ""
        return f"Not decided: {holds} of {run} properties of {name} hold, and none is violated{rest}.", None
    whole = sum(count["holds"] == count["run"] + count.get("not_asked", 0) > 0 for count in counts)
    sentence = f"{whole} of {len(checks)} implementations hold every property that was to be run"
    sentence += f"; {violated} of {run:,} verdicts are violations" if violated else ""
    sentence += f"; {missing:,} properties were not asked" if missing else ""
    return f"{sentence}.", True if whole == len(checks) else False if violated else None


def _sections(sources: Sequence[ResultFile]) -> Iterator[dict[str, Any]]:
    spent = 0
    for kind, anchor, title in _QUESTIONS:
        chosen = [source for source in sources if source.content["kind"] == kind]
        # violations come first
        chosen.sort(key=lambda source: -source.content.get("counts", {}).get("violated", 0) if kind == "check" else 0)
        if not chosen:
            continue
        pictures: list[tuple[Picture, str]] = []
        sentences = []
        for number, source in enumerate(chosen):
            with complete(source):
                sentences.append(headline(source.content))
                for picture in pictures_of(source.content) if number < MOST_PICTURED else ():
                    svg = inline(picture.svg, f"{anchor}{number}-{len(pictures)}-")
                    if spent + len(svg) <= PICTURES_BUDGET:
                        spent += len(svg)
                        pictures.append((picture, svg))
        yield {"anchor": anchor, "title": title, "sentences": sentences, "pictures": pictures}


def _violations(source: ResultFile) -> Iterator[Violation]:
    implementation = source.content["implementation"]
    for entry in source.content["properties"]:
        if entry["verdict"] != "violated":
            continue
        with complete(source):
            facts = list(facts_of(entry["counterexample"])) if entry.get("counterexample") else []
            # tests the property again and saves the smallest case with its own script
            words = ["cemverify", "check", implementation, "--properties", entry["id"]]
            words += ["--properties-from", entry["stated_in"]] if "stated_in" in entry else []
            yield {
                "reason": "",
                "known": None,
                **{name: entry[name] for name in ("id", "claim", "source")},
                **entry,
                "implementation": implementation,
                "part": f"{entry['part']} ({entry.get('because', '')})" if entry.get("part") else "",
                "facts": [(name, value) for name, value in facts if value],
                "command": shlex.join([*words, "--save-counterexamples", "out/found"]),
            }


def _groups(source: ResultFile, violations: Sequence[Violation]) -> Iterator[dict[str, Any]]:
    """The violations of a result, grouped by the causes in its diagnosis; the rest by the part that is wrong."""
    left = {violation["id"]: violation for violation in violations}
    with complete(source):
        diagnosis = source.content.get("diagnosis") or {"causes": [], "unexplained": []}
        follows = {"name": "may follow from the cause above", "properties": diagnosis["unexplained"]}
        for cause in (*diagnosis["causes"], follows):
            if members := [left.pop(id_) for id_ in cause["properties"] if id_ in left]:
                place, edit = cause.get("place"), cause.get("edit") or {"before": "", "after": ""}
                lines = [f"- {line}" for line in edit["before"].splitlines()]
                lines += [f"+ {line}" for line in edit["after"].splitlines()]
                where = f"{place['file']}:{place['line']}" if place is not None else ""
                yield {**_NO_CAUSE, **cause, "place": where, "edit": lines, "members": members}
    by_part: dict[str, list[Violation]] = {}
    for violation in left.values():
        by_part.setdefault(violation["known"] or violation["part"] or violation["id"], []).append(violation)
    for name, members in by_part.items():
        yield {**_NO_CAUSE, "name": "accepted for now" if members[0]["known"] else name, "members": members}


_NO_CAUSE: Mapping[str, Any] = {"because": "", "place": "", "edit": ()}


def _tables(sources: Sequence[ResultFile]) -> tuple[list[tuple[Table, str]], list[str]]:
    """Every table; those that would make the page too large are folded, or left out and named."""
    tables, left_out, spent = [], [], 0
    # counterexamples are shown above, with the properties that they violate
    for source in sorted(sources, key=lambda source: source.content["kind"] == "counterexample"):
        for fold in (False, True):
            made = [(printed(sheet), source.origin) for sheet in tables_of(source, fold)]
            size = sum(_size(table) + len(source.origin) for table, _ in made)
            if spent + size <= TABLES_BUDGET:
                tables += made
                spent += size
                break
        else:
            left_out.append(str(source.path))
            continue
        if fold:
            left_out.append(f"{source.path} (folded here)")
    return tables, left_out


def _size(table: Table) -> int:
    cells = sum(len(_cell(cell).encode()) + 13 for row in table.rows for cell in row)
    return cells + sum(map(len, table.columns)) + len(table.title) + 1000


# --- the page as HTML -------------------------------------------------------------------------------


def render(page: Mapping[str, Any]) -> str:
    """The page in one file: style, script and pictures are inside, and it loads nothing from elsewhere."""
    environment = Environment(
        loader=PackageLoader("reports.page", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"brief": brief, "one_line": one_line, "cell": _cell, "flush_right": _flush_right}
    environment.tests["strong"] = lambda cell: isinstance(cell, Strong)
    # the data of a picture, for the link to it
    environment.filters["base64"] = lambda text: b64encode(text.encode("utf-8", "backslashreplace")).decode()
    environment.filters["letter"] = LETTERS.__getitem__
    environment.filters["ours"] = Markup  # for the style, the script and the pictures, which are our own
    folder = resources.files("reports.page")
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return environment.get_template("page.html.j2").render(page=page, style=style, script=script)


def _cell(cell: Cell) -> str:
    return visible(cell_text(cell))


def _flush_right(table: Table) -> list[bool]:
    """Which columns hold numbers."""
    return [is_numeric([_cell(row[i]) for row in table.rows]) for i in range(len(table.columns))]
