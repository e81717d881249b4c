"""`python -m suites.installation.release VERSION --date DATE`: what a release changes in files that name a version.

Prints the files that would change, and with --write changes them: the version of the package and of CITATION.cff, the
heading "Unreleased" of the change log, the catalogue that becomes final, and from 1.0 on the classifier.
docs/release.md says what has to hold before.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

from cemverify.catalogue.versions import RELEASED, current
from suites.kit.source import ROOT

EARLY, SETTLED = "Development Status :: 3 - Alpha", "Development Status :: 5 - Production/Stable"


def edits(root: Path, version: str, day: date) -> Iterator[tuple[str, str]]:
    """Each file that names the version, with what it becomes.

    Raises:
        ValueError: a file does not have the place that would change, exactly once.
    """
    final = list(dict.fromkeys((*RELEASED, current())))
    listed = ", ".join(f'"{catalogue}"' for catalogue in final) + "," * (len(final) == 1)
    changes = {
        "cemverify/_version.py": (r'^VERSION = ".*"$', f'VERSION = "{version}"'),
        "CITATION.cff": (r"^version: .*$(\ndate-released: .*$)?", f"version: {version}\ndate-released: {day}"),
        "CHANGELOG.md": (r"^## Unreleased\n(?=\n- )", f"## Unreleased\n\n## {version} ({day})\n"),
        "docs/ci.md": (r"OWNER/cemverify@v\S+", f"OWNER/cemverify@v{version}"),
    }
    changes["cemverify/catalogue/versions.py"] = (r"^(RELEASED: .* = )\(.*\)$", rf"\1({listed})")
    if int(version.partition(".")[0]) >= 1:
        changes["pyproject.toml"] = (rf"{EARLY}|{SETTLED}", SETTLED)
    for name, (place, becomes) in changes.items():
        text, count = re.subn(place, becomes, (root / name).read_text(), flags=re.MULTILINE)
        if count != 1:
            raise ValueError(f"{name} has {count} places that match {place!r}, not one: mend it by hand")
        yield name, text


def main(arguments: Sequence[str] | None = None) -> int:
    """Shows or makes the changes; 2 if the files are not as they should be."""
    parser = argparse.ArgumentParser(prog="python -m suites.installation.release", description=__doc__)
    parser.add_argument("version", metavar="VERSION", help="such as 1.0.0")
    parser.add_argument("--date", type=date.fromisoformat, required=True, metavar="DATE", help="such as 2026-12-15")
    parser.add_argument("--write", action="store_true", help="change the files")
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"\d+\.\d+\.\d+", options.version):
        parser.error(f"a version is three numbers, such as 1.0.0, not {options.version!r}")
    try:
        changed = dict(edits(ROOT, options.version, options.date))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, text in changed.items():
        if options.write:
            (ROOT / name).write_text(text)
        print(name, "changed" if options.write else "would change")
    return 0


if __name__ == "__main__":
    sys.exit(main())
