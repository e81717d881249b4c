"""What pages tell newcomers to type: three ways in, README's layer and the tutorial, with their files."""

from __future__ import annotations

from suites.docs.blocks import TUTORIAL as SHOWN
from suites.docs.blocks import blocks
from suites.installation.trials import Trial
from suites.kit.source import ROOT

HOLDS = "0 violated, 0 inconclusive, 0 suite errors"

_LAYER = next(block.text for block in blocks(ROOT / "README.md") if block.language == "python")
_LINES = map(str.strip, (ROOT / "README.md").read_text().splitlines())
_PRINTED = next(line for line in _LINES if line.startswith("mylayer:mine: "))
_RIGHT = SHOWN["layer.py"].replace(SHOWN["wrong"], SHOWN["right"])
_SAVED = "found/gradient-attention-plain.json"

DOORS = (
    Trial("init", HOLDS),
    Trial("init --kind module --ci none", HOLDS),
    Trial("init --kind energy --name my_energy --ci none", HOLDS),
    Trial("check mylayer:mine", _PRINTED, files={"mylayer.py": _LAYER}),
)
TUTORIAL = (
    Trial("check adapter:mine --save-counterexamples found", "temperature", 1,
          files={name: SHOWN[name] for name in ("layer.py", "adapter.py", "test_layer.py")}),
    Trial("repair adapter:mine", f"+{SHOWN['right'].splitlines()[0]}"),
    Trial(f"replay {_SAVED}", "VIOLATED", 1),
    Trial(f"replay {_SAVED}", "HOLDS", files={"layer.py": _RIGHT}),
    Trial("check adapter:mine", HOLDS),
)  # fmt: skip
TESTS = (Trial("-q test_layer.py", "passed"), Trial("-q test_cem_layer.py", "passed"))  # run by pytest
