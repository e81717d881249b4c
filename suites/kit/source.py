"""The project's own source, each file parsed once."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("cemverify", "synthetic", "reports", "benchmarks")


@cache
def files_of(package: str) -> tuple[Path, ...]:
    """The Python files of a package, sorted."""
    return tuple(sorted((ROOT / package).rglob("*.py")))


def name(file: Path) -> str:
    """The file's path from the root."""
    return str(file.relative_to(ROOT))


def module_of(file: Path) -> str:
    """The name that imports a file."""
    words = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(words[:-1] if words[-1] == "__init__" else words)


@cache
def is_module(module: str) -> bool:
    """Whether a name of ours is a package or a module."""
    path = ROOT / module.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


@dataclass(frozen=True)
class Source:
    """The facts about a file that the rules need."""

    imports: frozenset[str]  # modules; a name re-exported by `cemverify` counts as an import of its defining module
    words: frozenset[str]  # texts in a file with `import_module(...)`, which may name modules
    effects: tuple[str, ...]  # statements with an effect on import
    docstrings: tuple[int, ...]  # lines that read a docstring


@cache
def source(file: Path) -> Source:
    """A file, parsed once."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    computes = any(isinstance(node, ast.Name) and node.id == "import_module" for node in nodes)
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return Source(
        frozenset(_imports(file, nodes)),
        frozenset(texts) if computes else frozenset(),
        tuple(f"{node.lineno}: {ast.unparse(node)}" for node in _statements(tree.body) if not _defines(node)),
        tuple(node.lineno for node in nodes if _reads_docstring(node)),  # type: ignore[attr-defined]
    )


def _imports(file: Path, nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module, names, level):
                assert level == 0, f"{name(file)}:{node.lineno}: a relative import"
                for alias in names:
                    inner = f"{module}.{alias.name}"
                    defined = _public().get(alias.name, module) if module == "cemverify" else module
                    yield inner if is_module(inner) else str(defined)
            case ast.Call(ast.Name("import_module") | ast.Attribute(attr="import_module"), [ast.Constant(str(text))]):
                yield text


@cache
def _public() -> dict[str, str]:
    """The public names of `cemverify`, each with the module that defines it."""
    return {
        alias.name: str(node.module)
        for node in ast.walk(ast.parse((ROOT / "cemverify" / "__init__.py").read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("cemverify")
        for alias in node.names
    }


def _statements(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """What runs when a module is imported: its statements, and those in its branches and loops."""
    for node in statements:
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
            continue
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _statements(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))


def _defines(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value):
            return isinstance(value, ast.Constant)  # a docstring
        case ast.Assign(targets):
            return all(isinstance(target, ast.Name | ast.Tuple) for target in targets)
        case ast.AnnAssign(target) | ast.AugAssign(target):
            return isinstance(target, ast.Name)
    return not isinstance(node, ast.Delete)


def _reads_docstring(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr=word) | ast.Name(id=word):
            return word in ("__doc__", "getdoc")
    return False
