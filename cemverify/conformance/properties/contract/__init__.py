"""The contract of a CEM implementation, asked of every function over mixed options (docs/contract.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from cemverify.conformance.oracle.functions import EVERY
from cemverify.conformance.properties.base import Explanation, Property
from cemverify.conformance.properties.contract.arrays import (
    arguments_are_left_alone,
    arrays_may_share_memory,
    dtype_is_kept,
    numbers_are_read_anew,
    one_array_is_two,
    windows_are_read_as_they_are,
)
from cemverify.conformance.properties.contract.calls import (
    OfAllFunctions,
    each_thread_gets_its_answer,
    first_is_as_good_as_later,
    first_uses_leave_settings_alone,
    repeats_its_bits,
    training_follows_other_uses,
)
from cemverify.conformance.properties.contract.functions import contract_property, of_call
from cemverify.conformance.properties.function_calls import settings_are_left_alone, surroundings_change_no_answer
from cemverify.conformance.properties.training import SMOOTH
from cemverify.conformance.questions.spaces import mixed

_MOVES = "the right answer is not that of a layer that does nothing"
ARGUMENTS_KEPT = Explanation(
    "(x, h, weights, config, modules in eval mode) after the call = before, bit for bit",
    "An edited argument is somebody else's residual stream or parameter. The bug shows far from its cause. If a "
    "buffer moves with each call in eval mode, no answer can be had again.",
)
READ_ANEW = Explanation(
    "F(w) after w was edited in place = F(copy of w)",
    "Optimisers edit weights in place. Whoever caches by identity trains with the weights of yesterday.",
)
WINDOWS_READ = Explanation(
    "F(view of an array) = F(copy of the view)",
    "Slices, transposes and expanded arrays reach a layer every day; a kernel that ignores strides reads the "
    "neighbours.",
)
REPEATABLE = Explanation(
    "F(a) = F(a) after F(b), bit for bit",
    "An answer that depends on the call before cannot be reproduced, and makes every other comparison a lottery.",
)
SETTINGS_KEPT = Explanation(
    "settings of the process and states of generators after the call = before",
    "A default dtype, a number of threads or a seed that a layer leaves behind changes other people's results.",
)
UNMOVED = Explanation(
    "F under other settings of the process = F",
    "An answer that depends on the default dtype, on inference mode or on a seed differs between two programs that "
    "call the layer alike.",
)


def properties() -> Iterator[Property]:
    """What the contract says of calls: of arguments, answers, repeated calls, memory and settings, in this order."""
    for function in EVERY:
        yield contract_property(
            function,
            "inputs-unchanged",
            f"A call of {function.name} leaves its arguments unchanged, and modules in eval mode.",
            *ARGUMENTS_KEPT,
            arguments_are_left_alone,
            "the call returns an answer",
            floor=1.0,
        )
    for function in EVERY:
        yield contract_property(
            function,
            "shape-and-dtype",
            f"The answer of {function.name} has the right shape, and the dtype of x: float64, float32 or bfloat16.",
            "shape(x') = shape(x),  dtype(x') = dtype(x),  device(x') = device(x)",
            "A layer that answers in float32 whatever it is given silently lowers the precision of everything after "
            "it.",
            dtype_is_kept,
            "the call returns an answer",
            rows=0.5,
            floor=1.0,
        )
    for function in EVERY:
        yield contract_property(
            function,
            "determinism",
            f"The same call of {function.name} returns the same bits, whatever was called in between.",
            *REPEATABLE,
            repeats_its_bits,
            "the call in between returns something else",
            floor=0.5,
            once=True,
        )
        yield contract_property(
            function,
            "threads",
            f"A call of {function.name} returns the same while another thread makes one, and so does that one.",
            "two calls in two threads = each call alone",
            "Servers and data loaders call from several threads; state that calls share mixes their answers.",
            each_thread_gets_its_answer,
            "the other call began during the first, and returns something else",
            rows=0.2,
            once=True,
            needs={"threads"},
        )
    yield Property(
        "contract/all/first-calls",
        "The first answer of each function in a new process is right, and so is one after many others.",
        "docs/contract.md",
        "the first call in a process, and a later one in another shape = the golden answer",
        "What is set up lazily, tables of positions say, may be wrong the first time or frozen at the first shape.",
        first_is_as_good_as_later,
        OfAllFunctions(mixed("block", steps=(2, 3), textures=("plain",))),
        share=0.1,
        sources=(),
        first=True,
        once=True,
        premise="no right answer is that of a layer that does nothing",
        floor=0.5,
    )
    positions = mixed("block", SMOOTH, steps=(1, 2), textures=("plain",), tokens=3, rows=2)
    # angles are what is kept most often, and what a lower dtype spoils most
    positions = replace(positions, choices={**positions.choices, "position": ("rotary",)})
    yield Property(
        "contract/all/training-after-other-uses",
        "Gradients are right after calls of the same shapes in inference mode and in a lower dtype.",
        "docs/contract.md",
        "v^T dF/dw after F in inference mode, and after F in bfloat16, at the same shapes = golden",
        "A model is evaluated before it is trained. Masks, slopes and angles that were kept from an evaluation "
        "cannot be saved for a backward pass, or have the precision of another dtype.",
        training_follows_other_uses,
        OfAllFunctions(positions),
        frozenset({"gradients"}),
        share=0.1,
        sources=(),
        scattered=5,
        compiled=3,
        first=True,
        once=True,
        premise="the products with respect to all arrays are not zero",
        floor=0.3,
    )
    for function in EVERY:
        yield contract_property(
            function,
            "edited-arrays",
            f"{function.name} reads edited arrays again, and what it returned before does not change.",
            *READ_ANEW,
            numbers_are_read_anew,
            "other numbers give another output",
            every_dtype=True,
            rows=0.6,
            once=True,
        )
        yield contract_property(
            function,
            "windows",
            f"{function.name} reads views as they are: windows, transposed and expanded arrays, weights in any "
            "order.",
            *WINDOWS_READ,
            windows_are_read_as_they_are,
            _MOVES,
            rows=0.75,
        )
        yield contract_property(
            function,
            "shared-memory",
            f"{function.name} reads arrays that share memory: overlapping x and h, one array for two weights.",
            "F(x, h overlapping) = F(copies)",
            "x and h are often windows of one array. A layer that writes before it has read everything answers "
            "wrongly.",
            arrays_may_share_memory,
            _MOVES,
            rows=0.5,
        )
        if not function.starts_at_the_memory:
            yield contract_property(
                function,
                "one-array",
                f"x and h of {function.name} may be the same array; the output is that for two equal arrays.",
                "F(x, x) = F(x, copy of x)",
                "In self-attention the state and the memory are one array. Whoever updates it in place moves the "
                "memory that must stay fixed.",
                one_array_is_two,
                _MOVES,
                rows=0.5,
                controls=frozenset({"random"}),
            )
    for function in EVERY:
        yield contract_property(
            function,
            "settings-unchanged",
            f"A call of {function.name} leaves settings of the process as they are, whatever they are, and seeds no "
            "random generator.",
            *SETTINGS_KEPT,
            of_call(settings_are_left_alone),
            "the call returns an answer",
            every_dtype=True,
            rows=0.45,
            compiled=3,  # each is compiled ten times
            once=True,
            floor=1.0,
        )
        yield contract_property(
            function,
            "surroundings",
            f"Settings of the process change no answer of {function.name}.",
            *UNMOVED,
            of_call(surroundings_change_no_answer),
            _MOVES,
            rows=0.25,
            dtype=torch.float64,
        )
    yield Property(
        "contract/all/first-uses",
        "The first call with an option changes no setting of the process and seeds no random generator.",
        "docs/contract.md",
        SETTINGS_KEPT.formula,
        "What is set up where an option is first met, a hook or a check of itself, is easily left behind.",
        first_uses_leave_settings_alone,
        OfAllFunctions(mixed("block", textures=("plain",))),
        share=0.1,
        sources=(),
        scattered=1,
        first=True,
        once=True,
        premise="the call returns an answer",
        floor=1.0,
    )
