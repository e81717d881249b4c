"""The names of what is to be judged, and the messages for names of nothing.

    mypkg.cem:implementation       a module and an attribute; the module may lie in the current folder
    mypkg/cem.py:implementation    the same, as a file
    reference                      an installed entry point of the group "cemverify.implementations"

Nothing is imported here, least of all torch, so a typo is reported at once. A module may do anything when it is
imported, so `settled` refuses only what is certainly not there; `contract.attribute` imports the module and decides,
with the same messages.
"""

from __future__ import annotations

import ast
import errno
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path

from cemverify.console.errors import Refusal
from cemverify.processes.inputs import read_bytes

ENTRY_POINTS = "cemverify.implementations"

# The functions that make implementations: what a module assigns their results to is the name of one.
MAKERS = ("implementation", "energy_layer", "implementation_from_modules")

_MOST = 6  # names that a sentence lists
# What could bind names that do not appear in a module's text.
_DYNAMIC = {"__getattr__", "__dict__", "globals", "locals", "vars", "exec", "eval", "setattr", "modules"}


class LoadError(Refusal):
    """An implementation cannot be loaded, or certainly could not; the message is one sentence for the user."""


def parts(name: str) -> tuple[str, str]:
    """The module that a name stands for, dotted, and the path of the attribute in it."""
    module_word, colon, path = name.rpartition(":")
    if not colon:
        module_word, path = name, ""
    if is_file(module_word):
        module = _module_of(module_word)
        if not path:
            raise LoadError(_unnamed(module_word, "file", Path(module_word)))
        return module, path
    if not path:
        points = installed()
        if name not in points:
            raise LoadError(_unknown(name, sorted(points)))
        module_word, _, path = points[name].partition(":")
    if not module_word:
        raise LoadError(f"{name!r} has no module before the colon: give module:attribute")
    return module_word, path


def module_name(name: str) -> str:
    """The dotted name of a module that is given by that name or as a file."""
    return _module_of(name) if is_file(name) else name


def installed() -> dict[str, str]:
    """What the installed names stand for, each as module:attribute."""
    return {point.name: point.value for point in metadata.entry_points(group=ENTRY_POINTS)}


def settled(name: str) -> str:
    """The name as results have it: a file's becomes module:attribute, any other stays."""
    module, path = parts(name)
    spec = _find_module(module, name)
    if spec is not None and spec.origin is not None and spec.submodule_search_locations is None:
        refusal = _lacking(Path(spec.origin), module, path)
        if refusal is not None:
            raise LoadError(refusal)
    return f"{module}:{path}" if is_file(name.rpartition(":")[0] or name) else name


def files(name: str) -> list[Path]:
    """The file of the module in which an implementation lies, or the folder of the package.

    Empty where only importing it would tell.
    """
    return module_files(parts(name)[0])


def module_files(name: str) -> list[Path]:
    """The file or the package's folder of a module that is given by its dotted name or its file.

    Empty where only importing it would tell.
    """
    top = module_name(name).partition(".")[0]
    loaded = sys.modules.get(top)
    spec = getattr(loaded, "__spec__", None) if loaded is not None else _find_module(top, name)
    if spec is None:
        return []
    return [Path(place) for place in spec.submodule_search_locations or [spec.origin] if place is not None]


def is_file(text: str) -> bool:
    """Whether the text means a file rather than the dotted name of a module."""
    return text.endswith(".py") or "/" in text or os.sep in text


# --- sentences ------------------------------------------------------------------------------------------


def no_module(module: str, name: str) -> str:
    """The message for a module that does not exist."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names and Path(top).is_dir():
        return f"the folder {top!r} has the name of a Python module, which is imported instead; rename the folder"
    siblings = (path.stem for path in Path().glob("*") if path.suffix == ".py" or (path / "__init__.py").is_file())
    near = get_close_matches(module, [stem for stem in siblings if stem.isidentifier()], 1)
    about = f"; did you mean {near[0]!r}?" if near else "; is it on the Python path?"
    return f"no module {module!r} (to load {name!r}){about}"


def no_attribute(module: str, path: str, declared: Sequence[str], rest: Iterable[str]) -> str:
    """The message for an attribute that a module lacks.

    Args:
        declared: the names of the implementations and energy layers in it. rest: what else it defines, which is
            named if there are none.
    """
    message = f"module {module!r} has no attribute {path!r}"
    names = list(declared) or list(rest)
    if near := get_close_matches(path, names, 1):
        return f"{message}; did you mean {module}:{near[0]}?"
    return f"{message}; it defines {_listed(names)}" if names else message


def _unknown(name: str, points: Sequence[str]) -> str:
    with suppress(LoadError):
        spec = _find_module(name, name)
        if spec is not None and spec.origin is not None:
            return _unnamed(name, "module", Path(spec.origin))
    near = get_close_matches(name, points, 1)
    if near:
        return f"unknown implementation {name!r}; did you mean {near[0]!r}?"
    return (
        f"unknown implementation {name!r}: give module:attribute, file.py:attribute, or one of the installed names: "
        f"{', '.join(points) or 'none'}"
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return f"{', '.join(names[:_MOST])}{more}"


# --- files ----------------------------------------------------------------------------------------------


def _module_of(file: str) -> str:
    """The dotted name under which a file is imported from here."""
    path = Path(os.path.abspath(file))
    path = path.parent if path.name == "__init__.py" else path
    if not os.path.isfile(path) and not os.path.isfile(path / "__init__.py"):  # False for too long a name, too
        near = get_close_matches(path.name, [p.name for p in path.parent.glob("*.py")], 1)
        about = f"; did you mean {Path(file).with_name(near[0])}?" if near else ""
        raise LoadError(f"there is no file {file!r}{about}")
    whole = path.with_suffix("") if path.is_file() else path
    folders = [folder for folder in map(Path, (os.getcwd(), *sys.path)) if folder in whole.parents]
    if not folders:
        raise LoadError(
            f"{file!r} is neither below this folder nor on the Python path; go to its folder, or add it to PYTHONPATH"
        )
    # the deepest, as it is the source folder of a package; but no folder inside a package
    best = max(folders, key=lambda folder: (not (folder / "__init__.py").exists(), len(folder.parts)))
    words = whole.relative_to(best).parts
    if strange := [word for word in words if not word.isidentifier() or iskeyword(word)]:
        nearer = "go to its folder, or " * (strange[-1] != words[-1])
        raise LoadError(f"{file!r} cannot be imported, as {strange[0]!r} is not a Python name; {nearer}rename it")
    return ".".join(words)


def _unnamed(name: str, kind: str, file: Path) -> str:
    declared = _declared(_tree(file))
    about = f"; it defines {_listed(declared)}" if len(declared) > 1 else ""
    return (
        f"{name!r} is a {kind}: name an object in it, {name}:{declared[0] if len(declared) == 1 else 'NAME'}{about}"
    )


# --- what is certain without importing --------------------------------------------------------------------


def _find_module(module: str, name: str) -> ModuleSpec | None:
    """Where a module lies; None if only importing its packages would tell."""
    names = module.split(".")
    dotted = [".".join(names[: n + 1]) for n in range(len(names))]
    if dotted[0] in sys.modules:
        return None
    try:
        # what is in the current folder comes first: commands put it on the path
        spec = PathFinder.find_spec(dotted[0], [os.getcwd()]) or find_spec(dotted[0])
    except (ImportError, ValueError):
        return None
    if spec is None:
        raise LoadError(no_module(module, name))
    for inner in dotted[1:]:
        around = spec
        if around.submodule_search_locations is None:
            return None  # `os.path` is a module of a module
        try:
            spec = PathFinder.find_spec(inner, around.submodule_search_locations)
        except KeyError:  # a folder without `__init__.py`, whose package must be imported before it is found
            return None
        if spec is None:
            if _does_nothing(around):
                raise LoadError(no_module(module, name))
            return None
    return spec


def _does_nothing(package: ModuleSpec) -> bool:
    """Whether importing a package runs no code, so that it has no modules but the files in it."""
    if package.origin is None or not package.origin.endswith(".py"):
        return package.origin is None
    tree = _tree(Path(package.origin))
    return tree is not None and all(isinstance(node, ast.Expr) for node in tree.body)


def _lacking(file: Path, module: str, path: str) -> str | None:
    """The message for an attribute that a module's text rules out; None if it does not, or offers no other."""
    tree = _tree(file)
    if tree is None:
        return None
    bound, declared = _bound(tree), _declared(tree)
    if bound is None or path.partition(".")[0] in bound or not declared:
        return None
    return no_attribute(module, path, declared, ())


def _tree(file: Path) -> ast.Module | None:
    """The text of a module as a tree; None if there is none, or it cannot be read."""
    try:
        return ast.parse(read_bytes(file)) if file.suffix == ".py" else None
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise LoadError(f"{file.name} is not a module: {error.strerror}") from error
        return None
    except (ValueError, SyntaxError, RecursionError):
        return None


def _bound(tree: ast.Module) -> Collection[str] | None:
    """Every name that a module binds anywhere; None if it could bind more than its text shows."""
    bound: set[str] = {"__name__", "__file__", "__doc__"}
    used: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(names=[ast.alias(name="*")]):
                return None
            case ast.Import(names) | ast.ImportFrom(names=names):
                bound |= {alias.asname or alias.name.partition(".")[0] for alias in names}
                used |= {alias.name for alias in names}
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                bound.add(name)
            case ast.Name(name, ast.Store()) | ast.MatchAs(name=str(name)) | ast.MatchStar(str(name)):
                bound.add(name)
            case ast.ExceptHandler(name=str(name)) | ast.MatchMapping(rest=str(name)):
                bound.add(name)
            case ast.Name(name) | ast.Attribute(attr=name):
                used.add(name)
    return None if _DYNAMIC & (used | bound) else bound


def _declared(tree: ast.Module | None) -> list[str]:
    """The names of the implementations that a module makes, in their order."""
    return [] if tree is None else list(dict.fromkeys(_made(tree.body)))


def _made(body: Sequence[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.Assign([ast.Name(name)], ast.Call(ast.Name(maker) | ast.Attribute(attr=maker))):
                if maker in MAKERS:
                    yield name
            case ast.AnnAssign(ast.Name(name), _, ast.Call(ast.Name(maker) | ast.Attribute(attr=maker))):
                if maker in MAKERS:
                    yield name
