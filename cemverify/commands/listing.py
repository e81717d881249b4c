"""Writes `cemverify/catalogue/listing.jsonl`, what `cemverify list` tells of every property, from their declarations.

python -m cemverify.commands.listing > cemverify/catalogue/listing.jsonl
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from cemverify.catalogue.index import Listed, largest
from cemverify.conformance.properties import Property, catalogue


def text() -> str:
    """The content of the file."""
    return "".join(f"{json.dumps(asdict(_told(p)), ensure_ascii=False)}\n" for p in catalogue())


def _told(property_: Property) -> Listed:
    reach = largest([property_.questions.reach()])
    return Listed(property_.id, property_.claim, property_.source, sorted(property_.needs), reach)


if __name__ == "__main__":
    sys.stdout.write(text())
