"""What is read from an implementation's own code: files, lines and numbers; and the sentence if that fails."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cemverify import implementation
from cemverify.conformance.implementations.contract import Subject
from cemverify.conformance.implementations.reference import reference
from cemverify.conformance.source.reading.code import OwnCode, as_plain, from_plain, read_code
from cemverify.conformance.source.reading.numbers import COMPARED, LIMIT, Number

LAYER = """\
import numpy as np

BLOCK = 2**10


def attention(x, h, weights, config, chunk=48):
    if h.shape[1] > BLOCK:
        x = x + 1
    for low in range(0, h.shape[1], chunk):
        x = x + h[:, low : low + 96].sum() * 0
    if x is None:  # pragma: no cover
        return None
    return np.where(x > 1e-4, x,
                    -20.0)
"""


def written(here: Path, text: str, **helpers: str) -> OwnCode:
    """Writes a module, imports it, and reads the code of the function `attention` in it."""
    for name, content in {"written_layer": text, **helpers}.items():
        (here / f"{name}.py").write_text(content)
    importlib.invalidate_caches()
    module = importlib.import_module("written_layer")
    return read_code("written_layer", implementation(attention=module.attention, arrays="numpy"))


def value(code: OwnCode, wanted: float) -> Number:
    return next(number for number in code.numbers if number.value == wanted)


def test_lines_that_only_a_call_reaches_are_told_from_those_of_the_import(here: Path) -> None:
    (file,) = written(here, LAYER).files
    assert file.lines.called == {7, 8, 9, 10, 13}  # without `# pragma: no cover`
    assert file.lines.imported == {1, 3, 6}
    assert file.lines.first == {14: 13}
    assert file.lines.branches == {7: {8, 9}, 9: {10}}  # not to excluded lines


def test_numbers_are_found_with_what_follows_from_them(here: Path) -> None:
    code = written(here, LAYER)
    assert {n.value for n in code.numbers if n.telling == COMPARED} == {1024, 1e-4}
    assert {n.value for n in code.numbers if n.telling == LIMIT} == {48, 96}
    assert {20.0, 10.0, 2.0} <= {n.value for n in code.numbers}
    assert value(code, 1024).guards == {(code.files[0].path, 7)}
    assert value(code, 48).guards == frozenset()


def test_a_number_is_known_by_what_it_is_compared_with_or_limits(here: Path) -> None:
    steps = "for _ in range(min(config.steps, 16)):\n        x = x.max(-7) + x.clip(-5, 5)"
    code = written(here, f"def attention(x, h, weights, config):\n    {steps}\n    return x if x.shape[1] > 9 else x")
    assert "steps" in value(code, 16).words
    assert "x" in value(code, 5).words
    assert "shape[1]" in value(code, 9).words
    assert not value(code, 7).words  # an axis


def test_a_number_that_a_function_closes_over_is_found(here: Path) -> None:
    code = written(
        here,
        "def made(most):\n    def attention(x, h, weights, config):\n        return x if h.shape[1] < most else h\n"
        "    return attention\n\n\nattention = made(most=37 + len('abc'))\n",
    )
    assert value(code, 40).telling == COMPARED


def test_what_is_imported_from_the_same_folder_is_its_own_too(here: Path) -> None:
    code = written(
        here,
        "import numpy\nfrom helper_of_layer import attention\n",
        helper_of_layer="def attention(x, h, weights, config):\n    return x\n",
    )
    assert [Path(file.path).name for file in code.files] == ["helper_of_layer.py", "written_layer.py"]


def test_code_comes_back_from_the_wire_as_it_went_and_anything_else_is_not_believed(here: Path) -> None:
    code = written(here, LAYER)
    assert from_plain(as_plain(code)) == code
    for account in (None, 7, {}, {"files": [{"path": 1}], "numbers": [], "problems": [], "traced": 0}):
        assert from_plain(account) == OwnCode(problems=("its process sent no account of its code",))


def attention(x: Any, h: Any, weights: Any, config: Any) -> Any:
    return x


NO_FILE = "the module stand_in_for_a_layer has no file, so its code cannot be read"


def made(file: str) -> ModuleType:
    """A module that claims to be in this file."""
    module = ModuleType("made")
    module.__file__ = file
    return module


# from a notebook, which has no lines to read
IN_A_CELL = eval(compile("lambda x, h, weights, config: x", "<ipython-input-3-abc>", "eval"))  # noqa: S307


@pytest.mark.parametrize(
    ("module", "function", "sentence"),
    [
        (ModuleType("bare"), attention, NO_FILE),
        (None, attention, NO_FILE),
        (made("/of/fast_layer.so"), len, "fast_layer.so has no lines of Python to read"),
        (ModuleType("cell"), IN_A_CELL, NO_FILE),
    ],
    ids=["bare", "none", "extension", "notebook"],
)
def test_what_cannot_be_read_gets_a_sentence(
    module: ModuleType | None, function: Any, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if module is not None:
        monkeypatch.setitem(sys.modules, "stand_in_for_a_layer", module)
    subject = implementation(attention=function, arrays="numpy")
    assert read_code("stand_in_for_a_layer", subject).problems == (sentence,)


@pytest.mark.parametrize("module", ["pytest", "cemverify.conformance.implementations.reference"])
def test_installed_code_and_our_own_get_a_sentence(module: str) -> None:
    name = Path(str(sys.modules[module].__file__)).name
    words = f"{name} is a library's or cemverify's: only your own files are read"
    assert read_code(module, reference) == OwnCode(problems=(words,))


def test_generated_functions_get_a_sentence_and_the_rest_is_read(here: Path) -> None:
    code = written(
        here,
        "def helper(x):\n    return x\n\n\nexec('def attention(x, h, weights, config):\\n    return helper(x)')\n",
    )
    assert code.problems == ("attention was generated while the program ran (<string>), so its lines are not seen",)
    assert [file.lines.called for file in code.files] == [{2}]


def test_a_file_that_this_python_cannot_parse_gets_a_sentence(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = made(str(here / "newer_helper.py"))
    (here / "newer_helper.py").write_text("type Pair[T] = (T, T)\nprint(t'{Pair}' ???)\n")
    monkeypatch.setitem(sys.modules, "newer_helper", newer)
    code = written(here, LAYER)
    assert [Path(file.path).name for file in code.files] == ["written_layer.py"]
    assert len(code.problems) == 1
    assert "newer_helper.py could not be read: SyntaxError" in code.problems[0]


def test_decorated_functions_and_lambdas_are_read_like_any_other(here: Path) -> None:
    code = written(
        here,
        "import functools\n\n\ndef kept(f):\n    @functools.wraps(f)\n    def g(*a):\n        return f(*a)\n"
        "    return g\n\n\n@kept\ndef attention(x, h, weights, config):\n"
        "    return (lambda y: y if y.ndim > 33 else -y)(x)\n",
    )
    assert code.problems == ()
    assert code.files[0].lines.called == {5, 6, 7, 8, 13}
    assert value(code, 33).telling == COMPARED


def test_reading_never_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd:
        arrays = "numpy"

        @property
        def functions(self) -> Any:
            raise RecursionError

    subject: Subject = Odd()  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "odd_layer", made(__file__))
    assert read_code("odd_layer", subject).problems[0].startswith("its code could not be read: RecursionError")
