"""What pages tell newcomers to type: three ways in, README's layer and the tutorial, with the files they show."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from suites.installation.trials import Trial

ROOT = Path(__file__).parents[2]
HOLDS = "0 violated, 0 inconclusive, 0 suite errors"


def fenced(page: Path) -> Mapping[str, str]:
    """The fenced blocks of a page by their titles; of those without one the first of each language, by that."""
    blocks: dict[str, str] = {}
    for language, title, text in re.findall(
        r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    ):
        blocks.setdefault(title or language, text)
    return blocks


_README, _TUTORIAL = fenced(ROOT / "README.md"), fenced(ROOT / "docs" / "tutorial.md")
_WRONG = _TUTORIAL["layer.py"]
_RIGHT = _WRONG.replace(_TUTORIAL["wrong"], _TUTORIAL["right"])
_SAVED = "found/gradient-attention-plain.json"

DOORS = (
    Trial("init", HOLDS),
    Trial("init --kind module --ci none", HOLDS),
    Trial("init --kind energy --name my_energy --ci none", HOLDS),
    Trial("check mylayer:mine", HOLDS, files={"mylayer.py": _README["python"]}),
)
TUTORIAL = (
    Trial("check adapter:mine --save-counterexamples found", "temperature", 1,
          files={name: _TUTORIAL[name] for name in ("layer.py", "adapter.py", "test_layer.py")}),
    Trial("repair adapter:mine", f"+{_TUTORIAL['right'].splitlines()[0]}"),
    Trial(f"replay {_SAVED}", "VIOLATED", 1),
    Trial(f"replay {_SAVED}", "HOLDS", files={"layer.py": _RIGHT}),
    Trial("check adapter:mine", HOLDS),
)  # fmt: skip
TESTS = (Trial("-q test_layer.py", "passed"), Trial("-q test_cem_layer.py", "passed"))  # by pytest
