"""Single edits of a module's text: one name, operator, constant, factor, argument or line; everything else stays.

These undo the mistakes that are made in copying a formula. An edit replaces a few characters of the text, so the
author's layout and comments stay. Edits that often fix a mistake come first (`KINDS`).
"""

from __future__ import annotations

import ast
import builtins
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, pairwise, permutations
from types import UnionType

from cemverify.conformance.source.reading.own import source_lines

# The kinds of edits, the likeliest first.
KINDS = (
    "limit", "name", "key", "attribute", "operator", "letter", "constant", "sign", "grouping", "argument", "function",
    "transpose", "layout", "factor", "operation", "condition", "line", "term",
)  # fmt: skip

# Functions that are mistaken for one another.
_FAMILIES = (
    {"sin", "cos"},
    {"max", "min", "sum", "mean", "amax", "amin"},
    {"triu", "tril"},
    {"softmax", "log_softmax"},
    {"sigmoid", "tanh", "silu", "gelu", "relu", "softplus"},
    {"exp", "log", "expm1", "log1p", "exp2", "log2"},
    {"sqrt", "rsqrt", "square"},
    {"zeros_like", "ones_like"},
    {"zeros", "ones"},
    {"argmax", "argmin"},
    {"minimum", "maximum"},
    {"cumsum", "cumprod"},
)
_ARITHMETIC = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.MatMult: "@", ast.Pow: "**"}
_SWAPS: Mapping[type[ast.operator], Sequence[str]] = {
    ast.Add: ("-", "*"),
    ast.Sub: ("+", "*"),
    ast.Mult: ("/", "+", "-", "@"),
    ast.Div: ("*", "-", "+"),
    ast.Pow: ("*",),
    ast.FloorDiv: ("/", "*"),
    ast.Mod: ("//",),
    ast.MatMult: ("*",),
}
_COMPARISONS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_TRANSPOSED = (".T", ".mT")
_MOST_AXES = 4  # most axes of an array whose axes are reordered
_LARGE = 100  # a number from which one may stand for infinity, and its inverse for zero
_MOST_OPERANDS = 7  # most operands of an expression that is regrouped
_MOST_NAMES = 24  # most names that may replace another
_REACH = 3  # lines before and after a loop that may belong in it


@dataclass(frozen=True)
class Edit:
    """One change of a module's text."""

    kind: str  # one of `KINDS`
    line: int  # the first line that it changes, from 1
    # before, after: the characters that it replaces, and what replaces them
    before: str
    after: str
    # (from, to, text): which bytes of the text become which characters; in their order
    changes: tuple[tuple[int, int, str], ...] = field(repr=False)

    def applied(self, text: str) -> str:
        """The module's text with the edit.

        Args:
            text: the text that the edit was made for.
        """
        encoded, pieces, at = text.encode(), [], 0
        for a, b, new in self.changes:
            pieces += [encoded[at:a], new.encode()]
            at = b
        return b"".join([*pieces, encoded[at:]]).decode()


@dataclass(frozen=True)
class Vocabulary:
    """Words that an edit may use even if the module does not."""

    keys: Collection[str] = ()  # of mappings, such as the names of weights
    # by the name of their object: {"config": ("steps", "temperature")}
    attributes: Mapping[str, Collection[str]] = field(default_factory=dict)


def edits(text: str, vocabulary: Vocabulary | None = None, lines: Collection[int] | None = None) -> list[Edit]:
    """Every single edit of a module's functions, the likeliest first; no two make the same changes.

    Declarations (calls of `implementation` or `energy_layer`), imports, annotations, docstrings and raised exceptions
    are left alone.

    Args:
        lines: line numbers, from 1; an edited statement must include one of them. All lines if None.

    Raises:
        SyntaxError: the text is not Python of this version.
    """
    module = _Module(text, vocabulary or Vocabulary())
    edits_: dict[tuple[tuple[int, int, str], ...], Edit] = {}
    for edit in module.edits(lines):
        if edit.before != edit.after:
            edits_.setdefault(edit.changes, edit)
    return sorted(edits_.values(), key=lambda edit: (KINDS.index(edit.kind), edit.line))


@dataclass(frozen=True)
class _Place:
    """An expression and what surrounds it."""

    node: ast.expr
    parent: ast.AST  # the node that it is a part of
    statement: ast.stmt  # the statement that it is in
    function: ast.AST  # the innermost one


class _Module:
    """A module's text, its tree, and where each node's characters are."""

    def __init__(self, text: str, vocabulary: Vocabulary) -> None:
        self.text = text
        self.vocabulary = vocabulary
        self.tree = ast.parse(text)
        self.encoded = text.encode()
        ends = [0]
        for line in self.encoded.splitlines(keepends=True):
            ends.append(ends[-1] + len(line))
        self.starts = ends
        self.inside = {child: parent for parent in ast.walk(self.tree) for child in ast.iter_child_nodes(parent)}

    # --- text ---------------------------------------------------------------------------------------------

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """The bytes of a node: start, end."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def source(self, node: ast.expr | ast.stmt) -> str:
        """The characters of the source from which a node was parsed."""
        a, b = self.span(node)
        return self.encoded[a:b].decode()

    def edit(self, kind: str, *changes: tuple[int, int, str]) -> Edit:
        """The edit that replaces, for each change (a, b, text), the bytes from a to b by the text."""
        changes = tuple(sorted(changes))
        start, end = changes[0][0], changes[-1][1]
        after, at = [], start
        for a, b, new in changes:
            after += [self.encoded[at:a].decode(), new]
            at = b
        return Edit(kind, bisect_right(self.starts, start), self.encoded[start:end].decode(), "".join(after), changes)

    def put(self, kind: str, node: ast.expr | ast.stmt, new: str) -> Edit:
        """The edit that replaces a node's characters."""
        return self.edit(kind, (*self.span(node), new))

    # --- where --------------------------------------------------------------------------------------------

    def edits(self, lines: Collection[int] | None) -> Iterator[Edit]:
        """Every edit, in the order of the text."""
        for place in self.places():
            if lines is None or _touches(place.statement, lines):
                for make in _EXPRESSIONS:
                    yield from make(self, place)
        for function in ast.walk(self.tree):
            if isinstance(function, ast.FunctionDef) and (lines is None or _reaches(function, lines)):
                yield from _halves(self, function)
        for body in self.bodies():
            yield from _lines(self, body, lines)
        for place in self.constants():
            yield from _constants(self, place)

    def places(self) -> Iterator[_Place]:
        """Every expression inside a function that may be edited."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.expr) and (place := self.place(node)) is not None:
                yield place

    def place(self, node: ast.expr) -> _Place | None:
        """The place of an expression; None if it is not in a function's statements or must be left alone."""
        statement: ast.stmt | None = None
        function: ast.AST | None = None
        around: ast.AST = node
        while around in self.inside and hasattr(node, "lineno"):
            upper = self.inside[around]
            if function is None and _left_alone(around, upper):
                return None
            if statement is None and isinstance(around, ast.stmt):
                statement = around
            if function is None and isinstance(upper, ast.FunctionDef | ast.Lambda) and around is not upper.args:
                function = upper
            if statement is not None and function is not None:
                return _Place(node, self.inside[node], statement, function)
            around = upper
        return None

    def constants(self) -> Iterator[_Place]:
        """Numbers that are defaults of functions, or values that a module or a class names."""
        for node in ast.walk(self.tree):
            match node:
                case ast.FunctionDef(args=arguments):
                    defaults = [*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)]
                    for default in defaults:
                        yield _Place(default, node, node, node)
                case ast.Module(body) | ast.ClassDef(body=body):
                    for statement in body:
                        match statement:
                            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                                if isinstance(value, ast.Constant | ast.UnaryOp):
                                    yield _Place(value, statement, statement, _NOWHERE)

    def bodies(self) -> Iterator[list[ast.stmt]]:
        """The statements of each block inside a function."""
        for function in ast.walk(self.tree):
            if isinstance(function, ast.FunctionDef):
                for node in ast.walk(function):
                    for name in ("body", "orelse"):
                        block = getattr(node, name, None)
                        if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                            yield block

    # --- words --------------------------------------------------------------------------------------------

    def around(self, node: ast.AST | None) -> Iterator[ast.AST]:
        """A node, then everything that contains it, from the inside outwards."""
        while node is not None:
            yield node
            node = self.inside.get(node)

    def names(self, function: ast.AST) -> list[str]:
        """The variables that an expression in a function can use: its own, enclosing functions', the module's."""
        scopes = (
            each for each in self.around(function) if isinstance(each, ast.FunctionDef | ast.Lambda | ast.Module)
        )
        return list(dict.fromkeys(name for scope in scopes for name in _bound(scope)))

    def receivers(self, function: ast.AST) -> list[str]:
        """The names that methods around an expression use for their object: self."""
        functions = (each for each in self.around(function) if isinstance(each, ast.FunctionDef))
        methods = (each for each in functions if isinstance(self.inside.get(each), ast.ClassDef))
        return [argument.arg for method in methods for argument in method.args.args[:1]]

    def unbound(self, function: ast.AST, bound: Collection[str]) -> list[str]:
        """The names that a function reads although nothing around it binds them."""
        read = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        bound_names = {*bound, *self.functions, *self.imported}
        return sorted(name for name in read - bound_names if not hasattr(builtins, name))

    @cached_property
    def imported(self) -> set[str]:
        """The names that imports bind."""
        return self._bound_by(ast.Import | ast.ImportFrom)

    @cached_property
    def modules(self) -> set[str]:
        """The names of imported modules."""
        return self._bound_by(ast.Import)

    def _bound_by(self, kind: type[ast.Import] | UnionType) -> set[str]:
        aliases = (alias for node in ast.walk(self.tree) if isinstance(node, kind) for alias in node.names)
        return {alias.asname or alias.name.partition(".")[0] for alias in aliases}

    @cached_property
    def functions(self) -> list[str]:
        """The functions that the module defines."""
        return [node.name for node in self.tree.body if isinstance(node, ast.FunctionDef)]

    @cached_property
    def numbers(self) -> list[str]:
        """The module's names for numbers."""
        named = [s for s in self.tree.body if isinstance(s, ast.Assign) and isinstance(s.value, ast.Constant)]
        numbers = [s for s in named if type(getattr(s.value, "value", None)) in (int, float)]
        return [target.id for s in numbers for target in s.targets if isinstance(target, ast.Name)]

    @cached_property
    def keys(self) -> list[str]:
        """The keys with which mappings are read."""
        slices = (node.slice for node in ast.walk(self.tree) if isinstance(node, ast.Subscript))
        used = {index.value for index in slices if isinstance(index, ast.Constant) and isinstance(index.value, str)}
        return sorted(used | set(self.vocabulary.keys))

    @cached_property
    def attributes(self) -> Mapping[str, list[str]]:
        """The attributes that are read from each named object."""
        attributes = {name: set(words) for name, words in self.vocabulary.attributes.items()}
        return self._attributes(attributes, called=False)

    @cached_property
    def methods(self) -> Mapping[str, list[str]]:
        """The attributes that are called on each named object, such as the layers of a module."""
        return self._attributes({}, called=True)

    def _attributes(self, names: dict[str, set[str]], *, called: bool) -> dict[str, list[str]]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                parent = self.inside[node]
                is_called = isinstance(parent, ast.Call) and parent.func is node
                if is_called == called and node.value.id not in self.modules:
                    names.setdefault(node.value.id, set()).add(node.attr)
        return {name: sorted(attributes) for name, attributes in names.items()}


_NOWHERE = ast.parse("lambda: 0", mode="eval").body


def _left_alone(node: ast.AST, parent: ast.AST) -> bool:
    """Whether nothing in a node may be edited."""
    match parent:
        case ast.Raise() | ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Call(func=ast.Name("implementation" | "energy_layer") | ast.Attribute(attr="energy_layer")):
            return not isinstance(node, ast.Lambda)
        case ast.arg(annotation=annotation) | ast.AnnAssign(annotation=annotation):
            return node is annotation
        case ast.FunctionDef(returns=returns, decorator_list=decorators):
            return node is returns or node in decorators
        case ast.Expr(value=ast.Constant(str())):
            return True
    return False


def _reaches(function: ast.FunctionDef, lines: Collection[int]) -> bool:
    return any(function.lineno <= line <= (function.end_lineno or 0) for line in lines)


def _touches(statement: ast.stmt, lines: Collection[int]) -> bool:
    """Whether a statement, without the block below it, includes one of the lines."""
    inner = getattr(statement, "body", None)
    last = inner[0].lineno - 1 if isinstance(inner, list) and inner else statement.end_lineno or statement.lineno
    return any(line in lines for line in range(statement.lineno, max(last, statement.lineno) + 1))


def _bound(scope: ast.FunctionDef | ast.Lambda | ast.Module) -> Iterator[str]:
    """The variables of a scope: its arguments, and what it assigns."""
    if not isinstance(scope, ast.Module):
        arguments = scope.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if argument.arg not in ("self", "cls"):
                yield argument.arg
    if isinstance(scope, ast.Lambda):
        return
    queue: list[ast.AST] = list(scope.body)
    while queue:
        node = queue.pop(0)
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and not node.id.startswith("__"):
            yield node.id
        queue.extend(ast.iter_child_nodes(node))


# --- edits of expressions -----------------------------------------------------------------------------------


def _names(module: _Module, place: _Place) -> Iterator[Edit]:
    """Another variable in its place; for a called function, another function of the module."""
    node, parent = place.node, place.parent
    if not isinstance(node, ast.Name) or node.id in module.imported or hasattr(builtins, node.id):
        return
    called = isinstance(parent, ast.Call) and parent.func is node
    usable = module.functions if called else module.names(place.function)
    if isinstance(node.ctx, ast.Store):  # perhaps to a name that is read later but bound nowhere
        unused = ["_"] if isinstance(parent, ast.For | ast.comprehension) else []
        usable = [*module.unbound(place.function, usable), *unused, *usable]
    elif isinstance(parent, ast.Attribute):
        usable = [*module.receivers(place.function), *usable]
    near = sorted((name for name in usable if name != node.id), key=lambda name: -_likeness(name, node.id))
    for name in near[:_MOST_NAMES]:
        yield module.put("name", node, name)


def _likeness(a: str, b: str) -> float:
    """How much two names have in common: W_Q and W_K much, x and keys nothing."""
    same = sum(x == y for x, y in zip(a, b, strict=False))
    return same / max(len(a), len(b))


def _keys(module: _Module, place: _Place) -> Iterator[Edit]:
    node = place.node
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and isinstance(place.parent, ast.Subscript):
        quote = module.source(node)[0]
        for key in sorted(module.keys, key=lambda key: -_likeness(key, str(node.value))):
            yield module.put("key", node, f"{quote}{key}{quote}")


def _attributes(module: _Module, place: _Place) -> Iterator[Edit]:
    """Another attribute of that object; no `.data`, which ties no gradient; minus infinity, not the least number."""
    node = place.node
    match node:
        case ast.Attribute(value, "data"):
            yield module.put("attribute", node, module.source(value))
        case ast.Attribute(ast.Call(func=ast.Attribute(attr="finfo")), "min"):
            yield module.put("limit", node, 'float("-inf")')
        case ast.Call(func=ast.Name("Parameter") | ast.Attribute(attr="Parameter"), args=[tied]):
            while (inner := _untied(tied)) is not None:
                tied = inner
                yield module.put("attribute", node, module.source(tied))
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        _, b = module.span(node)
        called = isinstance(place.parent, ast.Call) and place.parent.func is node
        for other in (module.methods if called else module.attributes).get(node.value.id, ()):
            yield module.edit("attribute", (b - len(node.attr.encode()), b, other))


def _untied(node: ast.expr) -> ast.expr | None:
    """The original of an expression that is a copy without a gradient; None if it is no such copy."""
    match node:
        case ast.Attribute(value, "data") | ast.Call(func=ast.Attribute(value, "detach" | "clone"), args=[]):
            return value
    return None


def _operators(module: _Module, place: _Place) -> Iterator[Edit]:
    node = place.node
    match node:
        case ast.BinOp(left, operator, right):
            at = _between(module, left, right, _SIGN_OF.get(type(operator), ""))
            if at is not None:
                for kind, other in _swaps(operator):
                    yield module.edit(kind, (*at, other))
            if isinstance(operator, ast.Sub | ast.Div | ast.Pow):
                yield _exchanged(module, "operator", left, right)
        case ast.Compare(left, [operation], [right]):
            at = _between(module, left, right, _COMPARISONS.get(type(operation), ""))
            if at is not None:
                for other in _COMPARISONS.values():
                    yield module.edit("operator", (*at, other))
        case ast.BoolOp(operation, [first, second]):
            word, other = ("and", "or") if isinstance(operation, ast.And) else ("or", "and")
            at = _between(module, first, second, word)
            if at is not None:
                yield module.edit("operator", (*at, other))


_SIGN_OF = {**_ARITHMETIC, ast.FloorDiv: "//", ast.Mod: "%"}


def _between(module: _Module, left: ast.expr, right: ast.expr, word: str) -> tuple[int, int] | None:
    """Where an operator stands between its sides; parentheses and comments may be there too."""
    a, b = module.span(left)[1], module.span(right)[0]
    at = module.encoded[a:b].find(word.encode()) if word else -1
    return None if at < 0 else (a + at, a + at + len(word.encode()))


def _exchanged(module: _Module, kind: str, first: ast.expr, second: ast.expr) -> Edit:
    """Two expressions exchanged."""
    return module.edit(
        kind, (*module.span(first), module.source(second)), (*module.span(second), module.source(first))
    )


def _letters(module: _Module, place: _Place) -> Iterator[Edit]:
    """Letters of an einsum: one replaced, or two in a term exchanged."""
    node = place.node
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str) and "->" in node.value):
        return
    text = module.source(node)
    used = sorted({letter for letter in text if letter.isalpha()})
    a = module.span(node)[0]
    for i, letter in enumerate(text):
        if not letter.isalpha():
            continue
        for other in used:
            if other != letter:
                yield module.edit("letter", (a + i, a + i + 1, other))
    for term in re.finditer("[A-Za-z]+", text):
        for i in range(term.start(), term.end()):
            for j in range(i + 1, term.end()):
                swapped = text[i + 1 : j].join((text[j], text[i]))
                yield module.edit("letter", (a + i, a + j + 1, swapped))


def _constants(module: _Module, place: _Place) -> Iterator[Edit]:
    node = place.node
    if not isinstance(node, ast.Constant) or isinstance(node.value, str | bytes | complex) or node.value is ...:
        return
    value = node.value
    if isinstance(value, bool):
        yield module.put("constant", node, str(not value))
        return
    if not isinstance(value, int | float):
        return
    sign = place.parent.op if isinstance(place.parent, ast.UnaryOp) else None
    whole: ast.expr = place.parent if isinstance(sign, ast.USub | ast.UAdd) else node  # type: ignore[assignment]
    signed = -value if isinstance(sign, ast.USub) else value
    values: list[int | float] = []
    if isinstance(value, int):
        values = [signed - 1, signed + 1, -signed, 0, 1, -1, -2, 2, 3, 2 * signed]
        if isinstance(place.parent, ast.keyword) and place.parent.arg in ("dim", "axis"):
            values = [-1, -2, -3, 0, 1, 2, 3]
        yield from (module.put("constant", whole, str(other)) for other in (0.5, 2.0) if signed in (1, 2))
    else:
        values = [-signed, 0.0, 1.0, 0.5, 2.0, 2 * signed, signed / 2, *([1 / signed] if signed else ())]
        values += [signed * 10, signed / 10, signed + 1, signed - 1]
    if abs(value) >= _LARGE:
        yield module.put("limit", whole, f'float("{"-" * (signed < 0)}inf")')
    elif 0 < abs(value) <= 1 / _LARGE:
        yield module.put("limit", whole, "0.0")
    for other in dict.fromkeys(values):
        if other != signed:
            # a sign before an operand would otherwise apply to more than that operand
            binds = other < 0 and isinstance(module.inside.get(whole), ast.BinOp | ast.UnaryOp)
            yield module.put("constant", whole, f"({other!r})" if binds else repr(other))


def _signs(module: _Module, place: _Place) -> Iterator[Edit]:
    """A sign too many or too few: of a number, a term of a sum, or a returned or assigned value."""
    node = place.node
    match node:
        case ast.UnaryOp(ast.USub() | ast.Not(), operand):
            yield module.put("sign", node, module.source(operand))
        case ast.UnaryOp(ast.UAdd(), operand):
            yield module.put("sign", node, f"-{module.source(operand)}")
        case _ if _is_value(place):
            yield module.put("sign", node, f"-({module.source(node)})")


def _is_value(place: _Place) -> bool:
    """Whether an expression is a value by itself: assigned, returned, a factor, a term, an argument."""
    node, parent = place.node, place.parent
    if isinstance(node, ast.Constant | ast.Starred | ast.Tuple | ast.List | ast.Slice | ast.keyword):
        return False
    if isinstance(getattr(node, "ctx", None), ast.Store):
        return False
    match parent:
        case ast.Assign(value=value) | ast.AugAssign(value=value) | ast.Return(value=value):
            return value is node
        case ast.Lambda(body=body):
            return body is node
        case ast.BinOp():
            return True
        case ast.Call(args=arguments):
            return node in arguments
        case ast.keyword():
            return True
    return False


def _arguments(module: _Module, place: _Place) -> Iterator[Edit]:
    """Two arguments exchanged, one left out, or the whole call left out."""
    node = place.node
    if not isinstance(node, ast.Call):
        return
    arguments = [argument for argument in node.args if not isinstance(argument, ast.Starred)]
    for first, second in pairwise(arguments):
        yield _exchanged(module, "argument", first, second)
    everything: list[ast.expr | ast.keyword] = [*node.args, *node.keywords]
    texts = [_whole(module, part) for part in everything]
    function = module.source(node.func)
    if len(texts) > 1:
        for i in range(len(texts)):
            rest = ", ".join(text for j, text in enumerate(texts) if j != i)
            yield module.put("argument", node, f"{function}({rest})")
    match node:
        case ast.Call(func=ast.Attribute(value=value)) if not _names_a_module(module, value):
            yield module.put("function", node, module.source(value))
        case ast.Call(args=[only, *_]) if len(everything) <= 2:
            yield module.put("function", node, f"({module.source(only)})")


def _unpacked(module: _Module, place: _Place) -> Iterator[Edit]:
    """Two names to which a tuple is unpacked, or two of its values, exchanged."""
    if isinstance(place.node, ast.Tuple) and isinstance(place.parent, ast.Assign | ast.For | ast.comprehension):
        for first, second in combinations(place.node.elts, 2):
            yield _exchanged(module, "argument", first, second)


def _grouped(module: _Module, place: _Place) -> Iterator[Edit]:
    """An expression with different parentheses: a - b / c for (a - b) / c."""
    leaves, signs, operators = _taken_apart(place.node)
    whole = not _is_grouped(place.parent) or len(_taken_apart(place.parent)[0]) > _MOST_OPERANDS  # type: ignore[arg-type]
    if not (whole and 1 < len(leaves) <= _MOST_OPERANDS):
        return
    texts = [f"({module.source(n)})" if isinstance(n, _LOOSE) else module.source(n) for n in leaves]
    for tree in _groupings(signs, operators, 0, len(leaves) - 1, negative=signs[0]):
        yield module.put("grouping", place.node, re.sub(r"_(\d+)_", lambda m: texts[int(m[1])], ast.unparse(tree)))


_GROUPED = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.MatMult)
_LOOSE = (ast.Compare, ast.BoolOp, ast.IfExp, ast.Lambda, ast.NamedExpr, ast.UnaryOp, ast.Await)
_SAME = {ast.Add: (ast.Add, ast.Sub), ast.Mult: (ast.Mult, ast.Div), ast.MatMult: (ast.MatMult,)}


def _is_grouped(node: ast.AST) -> bool:
    return isinstance(getattr(node, "op", None), (*_GROUPED, ast.USub)) and isinstance(node, ast.BinOp | ast.UnaryOp)


def _taken_apart(node: ast.expr) -> tuple[list[ast.expr], list[bool], list[ast.operator]]:
    """The operands of an expression, whether each follows a minus, and the operators between them."""
    if isinstance(node, ast.UnaryOp) and _is_grouped(node):
        leaves, signs, operators = _taken_apart(node.operand)
        return leaves, [not signs[0], *signs[1:]], operators
    if not (isinstance(node, ast.BinOp) and _is_grouped(node)):
        return [node], [False], []
    a, b = _taken_apart(node.left), _taken_apart(node.right)
    return a[0] + b[0], a[1] + b[1], [*a[2], node.op, *b[2]]


def _groupings(
    signs: list[bool], operators: list[ast.operator], first: int, last: int, *, negative: bool
) -> Iterator[ast.expr]:
    """Every way to group the operands from first to last; only one of those that are equal by associativity."""
    if negative:
        inner = _groupings(signs, operators, first, last, negative=False)
        yield from (ast.UnaryOp(ast.USub(), each) for each in inner)
    elif first == last:
        yield ast.Name(f"_{first}_")
    for i in range(first, last):
        operator = operators[i]
        for left in _groupings(signs, operators, first, i, negative=negative):
            for right in _groupings(signs, operators, i + 1, last, negative=signs[i + 1]):
                if not isinstance(getattr(right, "op", None), _SAME.get(type(operator), ())):
                    yield ast.BinOp(left, operator, right)


def _whole(module: _Module, part: ast.expr | ast.keyword) -> str:
    if isinstance(part, ast.keyword):
        return f"{part.arg}={module.source(part.value)}" if part.arg else f"**{module.source(part.value)}"
    return module.source(part)


def _names_a_module(module: _Module, node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in module.modules


def _functions(module: _Module, place: _Place) -> Iterator[Edit]:
    """A function often mistaken for this one, and the offset of a mask that was left out."""
    node = place.node
    if not isinstance(node, ast.Call):
        return
    word = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    _, b = module.span(node.func)
    for family in _FAMILIES:
        for other in sorted(family - {word}) if word in family else ():
            yield module.edit("function", (b - len(word), b, other))
    if word in ("triu", "tril"):
        end = module.span(node)[1] - 1
        for offset in (1, -1):
            yield module.edit("argument", (end, end, f", {offset}" if node.args else str(offset)))


def _transposes(module: _Module, place: _Place) -> Iterator[Edit]:
    """A transpose too many or too few, or the sides of a matrix product exchanged."""
    node = place.node
    match node:
        case ast.Attribute(value, "T" | "mT"):
            yield module.put("transpose", node, module.source(value))
        case ast.BinOp(left, ast.MatMult(), right):
            yield _exchanged(module, "transpose", left, right)
            for side in (left, right):
                if not (isinstance(side, ast.Attribute) and side.attr in ("T", "mT")):
                    for suffix in _TRANSPOSED:
                        yield module.put("transpose", side, f"{_bracketed(module, side)}{suffix}")


def _repeats(module: _Module, place: _Place) -> Iterator[Edit]:
    """Whole copies in sequence instead of each number repeated, or the reverse."""
    node = place.node
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return
    of_module = _names_a_module(module, node.func.value)  # np.tile(x, ...), or x.tile(...)
    arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
    array, *more = (arguments or [node]) if of_module else [node.func.value, *arguments]
    library = module.source(node.func.value) if of_module else "torch"
    texts = [module.source(one) for one in (more[0].elts if more and isinstance(more[0], ast.Tuple) else more)]
    each, x = "repeat_interleave" if library == "torch" else "repeat", module.source(array)
    if node.func.attr == each and len(texts) == 2 and texts[1].lstrip("-").isdigit():
        axis = int(texts[1])
        for axes in range(axis + 1, _MOST_AXES + 1) if axis >= 0 else (-axis,):
            times = ["1"] * axes
            times[axis] = texts[0]
            yield module.put("layout", node, f"{library}.tile({x}, [{', '.join(times)}])")
    elif node.func.attr in ("repeat", "tile"):
        for i, times_ in enumerate(texts):
            if times_ != "1":
                yield module.put("layout", node, f"{library}.{each}({x}, {times_}, {i - len(texts)})")


def _axes(module: _Module, place: _Place) -> Iterator[Edit]:
    """Axes in another order, in a permutation or a reshape."""
    match place.node:
        case ast.Call(func=ast.Attribute(attr="permute" | "transpose"), args=axes) if 2 < len(axes) <= _MOST_AXES:
            for order in permutations(axes):
                yield module.edit(
                    "layout", *((*module.span(a), module.source(b)) for a, b in zip(axes, order, strict=True))
                )
        case ast.Call(func=ast.Attribute(attr="reshape" | "view") as method, args=[_, _, *_] as axes):
            (_, before), (_, end) = module.span(method.value), module.span(place.node)
            for i, (a, b) in enumerate(pairwise(axes)):
                swaps = (*module.span(a), module.source(b)), (*module.span(b), module.source(a))
                yield module.edit("layout", *swaps, (end, end, f".swapaxes({i}, {i + 1})"))
                yield module.edit("layout", (before, before, f".swapaxes({i}, {i + 1})"))
        case ast.Call(
            func=ast.Attribute(
                ast.Call(func=ast.Attribute(attr="reshape" | "view")) as inner, "transpose" | "swapaxes"
            ),
            args=[ast.Constant(int() as i), ast.Constant(int() as j)],
        ) if max(i, j) < len(inner.args):
            a, b = inner.args[i], inner.args[j]
            swaps = (*module.span(a), module.source(b)), (*module.span(b), module.source(a))
            yield module.edit("layout", *swaps, (module.span(inner)[1], module.span(place.node)[1], ""))


def _halves(module: _Module, function: ast.FunctionDef) -> Iterator[Edit]:
    """Numbers in pairs instead of halves, or the reverse, as in rotary positions."""
    cut: list[tuple[int, int, str]] = []
    joined: list[tuple[int, int, str]] = []
    whole = ""
    for node in ast.walk(function):
        match node:
            case ast.Subscript(value, ast.Tuple([*_, ast.Slice() as last])):
                middle = f"{module.source(value)}.shape[-1] // 2"
                match [module.source(end) if end else "" for end in (last.lower, last.upper, last.step)]:
                    case ["" | "0", "", "2"]:
                        new = f": {middle}"
                    case ["1", "", "2"]:
                        new = f"{middle} :"
                    case ["" | "0", upper, ""] if "2" in upper:
                        new = "::2"
                    case [lower, "", ""] if "2" in lower:
                        new = "1::2"
                    case _:
                        continue
                whole = module.source(value)
                cut.append((*module.span(last), new))
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Attribute(ast.Call(func=ast.Attribute(library, "stack") as stack) as inner)):
                after, word = module.span(inner)[1], "cat" if module.source(library) == "torch" else "concatenate"
                joined += [
                    (module.span(library)[1], module.span(stack)[1], f".{word}"),
                    (after, module.span(node)[1], ""),
                ]
            case ast.Call(func=ast.Attribute(library, "cat" | "concat" | "concatenate") as joins):
                end = module.span(node)[1]
                joined += [
                    (module.span(library)[1], module.span(joins)[1], ".stack"),
                    (end, end, f".reshape({whole}.shape)"),
                ]
    for changes in (cut, joined, [*cut, *joined]):
        if cut and changes:
            yield module.edit("layout", *changes)


def _bracketed(module: _Module, node: ast.expr) -> str:
    text = module.source(node)
    return text if isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript) else f"({text})"


def _factors(module: _Module, place: _Place) -> Iterator[Edit]:
    """A factor or divisor too many or too few."""
    node = place.node
    match node:
        case ast.BinOp(left, ast.Mult(), right):
            yield module.put("factor", node, _bracketed(module, left))
            yield module.put("factor", node, _bracketed(module, right))
        case ast.BinOp(left, ast.Div() | ast.Pow(), right):
            yield module.put("factor", node, _bracketed(module, left))
    if not _is_value(place) or (
        isinstance(place.parent, ast.BinOp) and isinstance(place.parent.op, ast.Mult | ast.Div)
    ):
        return
    scalars = [
        f"{name}.{attribute}"
        for name, attributes in module.attributes.items()
        if name in module.names(place.function)
        for attribute in attributes
        if attribute in module.vocabulary.attributes.get(name, ()) or name not in module.vocabulary.attributes
    ]
    inner = _bracketed(module, node)
    for factor in (*scalars[:12], *module.numbers, "2", "0.5"):
        yield module.put("factor", node, f"({factor} * {inner})")
        if factor not in ("2", "0.5"):
            yield module.put("factor", node, f"({inner} / {factor})")


def _conditions(module: _Module, place: _Place) -> Iterator[Edit]:
    """A branch that is taken always, never, or in the opposite cases."""
    if isinstance(place.parent, ast.If | ast.IfExp) and place.parent.test is place.node:
        for text in ("True", "False", f"not ({module.source(place.node)})"):
            yield module.put("condition", place.node, text)


def _terms(module: _Module, place: _Place) -> Iterator[Edit]:
    """A term too many in a sum, or one of the variables forgotten."""
    node, parent = place.node, place.parent
    match node:
        case ast.BinOp(left, ast.Add() | ast.Sub(), right):
            yield module.put("term", node, _bracketed(module, left))
            yield module.put("term", node, _bracketed(module, right))
    if isinstance(parent, ast.Assign | ast.Return) and _is_value(place):
        for name in module.names(place.function)[:_MOST_NAMES]:
            yield module.put("term", node, f"{name} + ({module.source(node)})")
            yield module.put("term", node, f"({module.source(node)}) - {name}")


_EXPRESSIONS: Sequence[Callable[[_Module, _Place], Iterator[Edit]]] = (
    _names, _keys, _attributes, _operators, _letters, _constants, _signs, _arguments, _unpacked, _grouped, _functions,
    _transposes, _repeats, _axes, _factors, _conditions, _terms,
)  # fmt: skip


# --- edits of lines -----------------------------------------------------------------------------------------


def _lines(module: _Module, body: list[ast.stmt], lines: Collection[int] | None) -> Iterator[Edit]:
    """A statement that belongs inside or outside a loop, before or after its neighbour, or nowhere."""
    for i, statement in enumerate(body):
        if lines is not None and not _touches(statement, lines):
            continue
        if isinstance(statement, ast.AugAssign):
            word = _SIGN_OF.get(type(statement.op), "")
            at = _between(module, statement.target, statement.value, f"{word}=")
            if word and at is not None:
                for kind, other in _swaps(statement.op):
                    yield module.edit(kind, (*at, f"{other}="))
                yield module.edit("operator", (*at, "="))
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if isinstance(statement, ast.Assign | ast.AugAssign | ast.Expr) and not is_text:
            if len(body) > 1:
                yield module.edit("line", (*_block(module, statement), ""))
            if i + 1 < len(body) and isinstance(body[i + 1], ast.Assign | ast.AugAssign):
                yield _moved(module, statement, _block(module, body[i + 1])[1], body[i + 1])
        if isinstance(statement, ast.For | ast.While):
            begins, ends = _block(module, statement)
            first, last = statement.body[0], statement.body[-1]
            inner = [s for s in statement.body if isinstance(s, ast.Assign | ast.AugAssign | ast.If)]
            if inner and first is not last:
                yield _moved(module, inner[0], begins, statement)
                yield _moved(module, inner[-1], ends, statement)
            for outer in body[max(0, i - _REACH) : i + 1 + _REACH]:
                if isinstance(outer, ast.Assign | ast.AugAssign | ast.If):
                    earlier = outer.lineno < statement.lineno
                    yield _moved(module, outer, _block(module, first)[0] if earlier else ends, first)


def _swaps(operator: ast.operator) -> Iterator[tuple[str, str]]:
    """What may replace an operator, each with the kind of the edit: a sum is seldom written for a product."""
    is_sum = isinstance(operator, ast.Add | ast.Sub)
    for other in _SWAPS.get(type(operator), ()):
        yield "operator" if is_sum == (other in "+-") else "operation", other


def _block(module: _Module, statement: ast.stmt) -> tuple[int, int]:
    """The bytes of all lines of a statement."""
    assert statement.end_lineno is not None
    return module.starts[statement.lineno - 1], module.starts[statement.end_lineno]


def _moved(module: _Module, statement: ast.stmt, at: int, like: ast.stmt) -> Edit:
    """A statement's lines moved to another place, indented like another statement."""
    a, b = _block(module, statement)
    text = module.encoded[a:b].decode()
    if not text.endswith("\n"):
        text += "\n"
    shift = like.col_offset - statement.col_offset
    shifted = "".join(_indented(line, shift) for line in source_lines(text, with_ends=True))
    return module.edit("line", (a, b, ""), (at, at, shifted))


def _indented(line: str, shift: int) -> str:
    if not line.strip():
        return line
    return " " * shift + line if shift >= 0 else line[-shift:] if not line[:-shift].strip() else line.lstrip()
