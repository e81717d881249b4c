"""The small language model of `python -m synthetic language train --preset tiny --models cem-t2`, to be filled again.

    python -m synthetic language train --preset tiny --models cem-t2 --folder out/tiny
    cemverify check examples.trained_models.language_model:build \\
        --checkpoint out/tiny/cem-t2/weights.safetensors --layer blocks.0.attention

Its layers are those of `cemverify.cem`, whose energies are known.
"""

import torch

from cemverify.cem.models import LanguageModel
from synthetic.studies.side_by_side.rows import tiny

BYTES = 256  # the vocabulary of a corpus without a tokeniser


def build() -> LanguageModel:
    (model,) = (contender.model for contender in tiny(BYTES).contenders if contender.slug == "cem-t2")
    return LanguageModel(model, torch.Generator().manual_seed(0))
