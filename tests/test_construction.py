"""No callable and no collaborator is stored on an object outside the constructor of its class.

A part says in its constructor what it needs, so that mypy proves the wiring, and nobody who reads a class
has to search the rest of the tree for whoever fills in its holes. The check is by syntax tree alone:

- `other.attr = value`, where `other` is anything but `self`, is a place if `value` is a lambda, a function, a
  bound method or a `partial` of one. It is one also if the class of `other` declares `attr` as a callable, as
  a Protocol or as a class of ours. Where its class cannot be seen, all classes that have the attribute must.
- `self.attr = value` outside the constructor is a place in the same cases, except that a method may make an
  object of its own: a value that is neither a callable nor a parameter is none.
- `setattr` of a name that is written out counts like an assignment to that name.
- An attribute that a class declares and its constructor does not set is a place: somebody else must fill it.

Data is no collaborator: Structs, tuples with names, enumerations, exceptions. Neither is what comes and goes
by its declared type (`Session | None`): mypy has each reader handle that it is absent. A callable and a
Protocol count even so.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = ("broker", "supervisor", "protocol", "client")
CONSTRUCTORS: Final = frozenset({"__init__", "__new__", "__post_init__"})
DATA: Final = frozenset({
    "BaseException", "Enum", "Exception", "ExceptionGroup", "Flag", "IntEnum", "IntFlag", "NamedTuple",
    "OSError", "StrEnum", "Struct", "TypedDict", "ValueError", "Warning", "bytes", "deque", "dict", "int",
    "list", "str", "tuple",
})  # fmt: skip
WRAPPERS: Final = frozenset({"Final", "ClassVar", "Annotated"})

_BOTH = "two parts that need each other: the call table tells the other, which acts on the table"
_TOGGLED = "state: there while the configuration has hooks, so that calls cost nothing without them"
_CLOSED = "state: a pipe or socket that is closed lets go of its listeners, so that both are freed at once"
_RUN = "belongs to the run of an event loop, which begins after the constructor"
_VALUE = "state: a value, whose place another one takes"
_SESSION = "state: a session whose HTTP door has died goes on over the connection of the next"
_ADAPTER = "state: how a server is spoken to is known once it has answered"
_CLICK = "parameters of click, completed by one table of names instead of one argument at each verb"
_SDK = "an object of the SDK, which has no argument for it"
REMAINING: Final[dict[str, str]] = {
    "broker/carpool_broker/core/broker.py: self.call_table.stateless_listener": _BOTH,
    "broker/carpool_broker/core/hooks/hook_points.py: self._call_table.hook_points": _TOGGLED,
    "broker/carpool_broker/core/registry/registry.py: seen.view": _VALUE,
    "broker/carpool_broker/transport/socket_io.py: self._on_lines": _CLOSED,
    "broker/carpool_broker/transport/socket_io.py: self._on_unread": _CLOSED,
    "broker/carpool_broker/transport/socket_io.py: self._on_closed": _CLOSED,
    "broker/carpool_broker/transport/socket_io.py: self._on_unfinished": _CLOSED,
    "broker/carpool_broker/transport/socket_io.py: self._on_input_ended": _CLOSED,
    "broker/carpool_broker/transport/streams.py: self._output": _SESSION,
    "supervisor/carpool_supervisor/era/era_detection.py: self._earlier": _ADAPTER,
    "supervisor/carpool_supervisor/stdio/child_io.py: self._on_lines": _CLOSED,
    "supervisor/carpool_supervisor/stdio/child_io.py: self._on_stdout_closed": _CLOSED,
    "supervisor/carpool_supervisor/stdio/child_io.py: self._on_stdin_blocked": _CLOSED,
    "supervisor/carpool_supervisor/stdio/child_io.py: self._on_long_line": _CLOSED,
    "supervisor/carpool_supervisor/stdio/child_io.py: self._on_paused": _CLOSED,
    "supervisor/carpool_supervisor/stdio/child_io.py: self._on_stdin_broken": _CLOSED,
    "supervisor/carpool_supervisor/stdio/instance_io.py: self._adapter": _ADAPTER,
    "protocol/carpool_protocol/link/zmq.py: self._deliver": _RUN,
    "protocol/carpool_protocol/machine/slices.py: result is only declared": _VALUE,
    "protocol/carpool_protocol/runtime/poller.py: entry.on_writable": _VALUE,
    "client/carpool/api/session.py: _tasks is only declared": _RUN,
    "client/carpool/bridge/process.py: sse.sse_within_origin": _SDK,
    "client/carpool/cli/completion.py: parameter.shell_complete": _CLICK,
    "client/carpool/http/core/core.py: self.gate": _VALUE,
    "client/carpool/http/server.py: self._link": _VALUE,
}
"""Places that are still there, each with its reason. The list may only shrink."""


class Kind(NamedTuple):
    """What an annotation says of an attribute."""

    is_callable: bool = False
    """A callable or a Protocol."""
    is_ours: bool = False
    """A class of ours with behaviour, and always there."""


NOTHING: Final = Kind()


class Class(NamedTuple):
    """One class of the product."""

    bases: frozenset[str]
    is_data: bool
    """By its decorator."""
    attributes: dict[str, ast.expr]
    """Declared types, as far as the syntax has them."""
    unset: frozenset[str]
    """Attributes that are declared and that its constructor does not set."""
    methods: dict[str, str]
    """The class that each returns, where that is one."""


def name_of(node: ast.expr | None) -> str:
    """The last part of a dotted name; empty for anything else. `a.B[C]` is `B`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return name_of(value)
        case ast.Constant(value=str(text)) if text.isidentifier():
            return text
    return ""


def members(node: ast.expr | None) -> Iterator[ast.expr]:
    """The members of a union; an annotation that is none is its only member."""
    match node:
        case None:
            return
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            yield from members(left)
            yield from members(right)
        case ast.Subscript(value=value, slice=inner) if name_of(value) in WRAPPERS:
            yield from members(inner.elts[0] if isinstance(inner, ast.Tuple) else inner)
        case _:
            yield node


class Product:
    """The classes, functions and names of callables of all files, by name."""

    def __init__(self, trees: list[ast.Module]) -> None:
        self.classes: dict[str, list[Class]] = {}
        self.functions: set[str] = set()
        self.aliases: set[str] = {"Callable"}
        for tree in trees:
            self._read(tree)
        self.attributes: set[str] = set()
        self.methods: set[str] = set()
        returned: dict[str, set[str]] = {}
        for each in self._all():
            self.attributes |= each.attributes.keys()
            self.methods |= each.methods.keys()
            for name, kind in each.methods.items():
                returned.setdefault(name, set()).add(kind)
        self.returned = {name: next(iter(kinds)) for name, kinds in returned.items() if len(kinds) == 1}
        """By name of a method: what all methods of that name return."""

    def _all(self) -> Iterator[Class]:
        for found in self.classes.values():
            yield from found

    def _read(self, tree: ast.Module) -> None:
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.functions.add(node.name)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):
                if not any(name_of(each) == "Callable" for each in members(node.value)):
                    continue
                self.aliases |= {each.id for each in node.targets if isinstance(each, ast.Name)}
        for inner in ast.walk(tree):
            if isinstance(inner, ast.ClassDef):
                self.classes.setdefault(inner.name, []).append(read_class(inner))

    def is_data(self, name: str) -> bool:
        """Whether a class of this name is one that only holds values."""
        if name in DATA:
            return True
        return any(
            each.is_data or any(map(self.is_data, each.bases - {name})) for each in self.classes.get(name, ())
        )

    def is_protocol(self, name: str) -> bool:
        """Whether a class of this name is an interface."""
        return any("Protocol" in each.bases for each in self.classes.get(name, ()))

    def kind(self, annotation: ast.expr | None) -> Kind:
        """What an attribute of this type is."""
        found = [*members(annotation)]
        names = [name_of(each) for each in found]
        is_callable = any(name in self.aliases or self.is_protocol(name) for name in names)
        is_there = not any(isinstance(each, ast.Constant) and each.value is None for each in found)
        ours = any(name in self.classes and not self.is_data(name) for name in names)
        return Kind(is_callable, is_there and ours)

    def kind_of_attribute(self, owner: str, name: str) -> Kind:
        """What the class `owner` declares this attribute as; where it is unknown, what all classes do."""
        known = owner in self.classes
        classes = self._lineage(owner) if known else self._all()
        kinds = [self.kind(each.attributes[name]) for each in classes if name in each.attributes]
        if not kinds:
            return NOTHING
        agree = any if known else all
        return Kind(agree(kind.is_callable for kind in kinds), agree(kind.is_ours for kind in kinds))

    def type_of_attribute(self, owner: str, name: str) -> str:
        """The name of its class, where that can be seen."""
        for each in self._lineage(owner):
            if name in each.attributes:
                return next((name_of(one) for one in members(each.attributes[name])), "")
        return ""

    def _lineage(self, owner: str) -> Iterator[Class]:
        for each in self.classes.get(owner, ()):
            yield each
            for base in each.bases - {owner}:
                yield from self._lineage(base)


def read_class(node: ast.ClassDef) -> Class:
    attributes: dict[str, ast.expr] = {}
    methods: dict[str, str] = {}
    unset: set[str] = set()
    made: set[str] = set()
    for inner in node.body:
        if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
            attributes[inner.target.id] = inner.annotation
            if inner.value is None:
                unset.add(inner.target.id)
        elif isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            decorated = {name_of(each) for each in inner.decorator_list}
            if decorated & {"property", "cached_property"}:
                if inner.returns is not None:
                    attributes.setdefault(inner.name, inner.returns)
            else:
                methods[inner.name] = next((name_of(each) for each in members(inner.returns)), "")
            if inner.name in CONSTRUCTORS:
                declared, is_set = constructed(inner)
                unset |= declared
                made |= is_set
                attributes |= {k: v for k, v in assigned(inner).items() if k not in attributes}
    return Class(
        frozenset(map(name_of, node.bases)),
        any(
            name_of(each.func if isinstance(each, ast.Call) else each) == "dataclass"
            for each in node.decorator_list
        ),
        attributes,
        frozenset(unset - made),
        methods,
    )


def assigned(constructor: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, ast.expr]:
    """Attributes of `self`: the declared type, that of the parameter, or the class that is made."""
    found: dict[str, ast.expr] = {}
    types = parameters(constructor)
    for node in ast.walk(constructor):
        if isinstance(node, ast.AnnAssign) and is_of_self(node.target):
            found[name_of(node.target)] = node.annotation
        elif isinstance(node, ast.Assign):
            for target, value in pairs(node):
                if is_of_self(target):
                    if isinstance(value, ast.Name) and value.id in types:
                        found.setdefault(name_of(target), types[value.id])
                    elif isinstance(value, ast.Call):
                        found.setdefault(name_of(target), value.func)
    return found


def constructed(constructor: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[set[str], set[str]]:
    """Attributes of `self` that it only declares, and those that it sets."""
    declared: set[str] = set()
    made: set[str] = set()
    for node in ast.walk(constructor):
        if isinstance(node, ast.AnnAssign) and is_of_self(node.target):
            (declared if node.value is None else made).add(name_of(node.target))
        elif isinstance(node, ast.Assign):
            made |= {name_of(target) for target, _ in pairs(node) if is_of_self(target)}
    return declared, made


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> dict[str, ast.expr]:
    every = function.args
    return {
        each.arg: each.annotation
        for each in (*every.posonlyargs, *every.args, *every.kwonlyargs)
        if each.annotation is not None
    }


def is_of_self(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in {"self", "cls"}
    )


def pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Targets with their values; of `a, b = f()` each has the whole value."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        elif isinstance(target, ast.Tuple):
            yield from ((each, node.value) for each in target.elts)
        else:
            yield target, node.value


class Finder(ast.NodeVisitor):
    """Collects the places of one file."""

    def __init__(self, product: Product, tree: ast.Module) -> None:
        self._product = product
        self._known = {
            each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        } | {
            alias.asname or alias.name
            for each in ast.walk(tree)
            if isinstance(each, ast.ImportFrom)
            for alias in each.names
            if alias.name in product.functions
        }
        """Functions that have a name in this file."""
        self._functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        self._classes: list[str] = []
        self.found: list[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._classes.append(node.name)
        if not (self._product.is_data(node.name) or self._product.is_protocol(node.name)):
            self.found += [f"{name} is only declared" for name in sorted(read_class(node).unset)]
        outer, self._functions = self._functions, []
        self.generic_visit(node)
        self._functions = outer
        self._classes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._functions.append(node)
        self.generic_visit(node)
        self._functions.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the name that `ast` calls

    def visit_Assign(self, node: ast.Assign) -> None:
        for target, value in pairs(node):
            if isinstance(target, ast.Attribute):
                self._look(target, value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if isinstance(node.target, ast.Attribute) and node.value is not None:
            self._look(node.target, node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if name_of(node.func) in {"setattr", "__setattr__"}:
            match node.args:
                case [subject, ast.Constant(value=str(name)), value]:
                    self._look(ast.Attribute(subject, name, ast.Store()), value)
                case _:
                    pass
        self.generic_visit(node)

    def _look(self, target: ast.Attribute, value: ast.expr) -> None:
        mine = is_of_self(target)
        if mine and self._functions and self._functions[0].name in CONSTRUCTORS:
            return
        if isinstance(value, ast.Constant):
            return  # what is taken away is no hole that is filled
        owner = self._type_of(target.value)
        kind = self._product.kind_of_attribute(owner, target.attr)
        is_stored = self._is_callable(value) or kind.is_callable
        if mine:
            is_stored = is_stored or (
                kind.is_ours and isinstance(value, ast.Name) and self._is_parameter(value.id)
            )
        else:
            is_stored = is_stored or kind.is_ours
        if is_stored:
            self.found.append(ast.unparse(target))

    def _is_parameter(self, name: str) -> bool:
        return any(
            name in {each.arg for each in ast.walk(one.args) if isinstance(each, ast.arg)}
            for one in self._functions
        )

    def _is_callable(self, value: ast.expr) -> bool:
        match value:
            case ast.Lambda():
                return True
            case ast.Call(func=func):
                return name_of(func) == "partial"
            case ast.IfExp(body=body, orelse=orelse):
                return self._is_callable(body) or self._is_callable(orelse)
            case ast.Name(id=name):
                if self._is_parameter(name):
                    return self._product.kind(self._declared(name)).is_callable
                return self._is_nested(name) or (name in self._known and not self._is_local(name))
            case ast.Attribute(attr=name):
                return name in self._product.methods and name not in self._product.attributes
            case _:
                return False

    def _is_nested(self, name: str) -> bool:
        return any(
            isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == name
            for one in self._functions
            for each in ast.walk(one)
            if each is not one
        )

    def _is_local(self, name: str) -> bool:
        return any(
            isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store)
            for one in self._functions
            for each in ast.walk(one)
        )

    def _declared(self, name: str) -> ast.expr | None:
        for one in reversed(self._functions):
            if (found := parameters(one).get(name)) is not None:
                return found
        return None

    def _type_of(self, node: ast.expr) -> str:
        """The class of an object, where the syntax shows it; empty: it does not."""
        match node:
            case ast.Name(id="self" | "cls"):
                return self._classes[-1] if self._classes else ""
            case ast.Name(id=name):
                if (declared := self._declared(name)) is not None:
                    return next((name_of(each) for each in members(declared)), "")
                return self._made(name)
            case ast.Attribute(value=value, attr=name):
                owner = self._type_of(value)
                return self._product.type_of_attribute(owner, name) if owner else ""
            case _:
                pass
        return ""

    def _made(self, name: str) -> str:
        """The class of a local that is made in the same function, or given a type."""
        for one in self._functions:
            for each in ast.walk(one):
                match each:
                    case ast.AnnAssign(target=ast.Name(id=found), annotation=annotation) if found == name:
                        return next((name_of(it) for it in members(annotation)), "")
                    case ast.Assign(targets=[ast.Name(id=found)], value=ast.Call(func=func)) if found == name:
                        made = name_of(func)
                        return made if made in self._product.classes else self._product.returned.get(made, "")
                    case _:
                        pass
        return ""


class _Qualify(ast.NodeTransformer):
    """Gives names of one file other names."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._names.get(node.id, node.id)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        node.name = self._names.get(node.name, node.name)
        self.generic_visit(node)
        return node


def module_of(file: str) -> str:
    return ".".join(Path(file).with_suffix("").parts[1:]).removesuffix(".__init__")


def tell_apart(trees: dict[str, ast.Module]) -> None:
    """Classes of one name get another name each, here and where they are imported."""
    homes: dict[str, set[str]] = {}
    for file, tree in trees.items():
        for each in ast.walk(tree):
            if isinstance(each, ast.ClassDef):
                homes.setdefault(each.name, set()).add(module_of(file))
    for file, tree in trees.items():
        names = {
            name: name + module_of(file)
            for name, at in homes.items()
            if len(at) > 1 and module_of(file) in at
        }
        for each in ast.walk(tree):
            if isinstance(each, ast.ImportFrom):
                for alias in each.names:
                    if len(at := homes.get(alias.name, set())) > 1 and each.module in at:
                        names[alias.asname or alias.name] = f"{alias.name}{each.module}"
        _Qualify(names).visit(tree)


def places(trees: dict[str, ast.Module]) -> list[str]:
    """`file: target` of each."""
    tell_apart(trees)
    product = Product([*trees.values()])
    found: dict[str, None] = {}
    for name, tree in trees.items():
        finder = Finder(product, tree)
        finder.visit(tree)
        found |= dict.fromkeys(f"{name}: {each}" for each in finder.found)
    return [*found]


@cache
def of_the_product() -> list[str]:
    return places(
        {
            str(path.relative_to(ROOT)): ast.parse(path.read_text())
            for source in SOURCES
            for path in sorted((ROOT / source).glob("carpool*/**/*.py"))
        }
    )


def test_what_an_object_needs_it_is_given_when_it_is_made() -> None:
    assert [each for each in of_the_product() if each not in REMAINING] == []


def test_the_list_of_remaining_places_only_shrinks() -> None:
    assert [each for each in REMAINING if each not in of_the_product()] == []


_CLASSES = """
class Looks(Protocol): ...
class Word(Struct): ...
class Part:
    def __init__(self, lines: list[str], looks: Looks, word: Word, other: "Part", maybe: Part | None) -> None:
        self.lines, self.looks, self.word, self.other, self.maybe = lines, looks, word, other, maybe
        self.then: Callable[[], None] | None = None
        self.any = 0
    def go(self) -> None: ...
"""


@pytest.mark.parametrize(
    "text",
    [
        "part.any = lambda: None",
        "part.any = part.go",
        "part.any = partial(print, 1)",
        "part.any = helper\ndef helper() -> None: ...",
        "part.any = 1 if part else part.go",
        "def build(part: Part) -> None:\n    part.other = make()",
        "def build(part: Part) -> None:\n    part.other.looks = make()",
        "part = Part()\npart.looks, part.lines = make(), []",
        "part = Part()\npart.then = found",
        "unknown.looks = found",
        "setattr(part, 'looks', found)",
        "object.__setattr__(part, 'any', part.go)",
        "class Owner:\n    def open(self, then: Callable[[], None]) -> None:\n        self.x = then",
        "class Owner:\n    def open(self, looks: Looks) -> None:\n        self.x = looks",
        "class Owner:\n    def open(self) -> None:\n        self.x = self.open",
        "class Heir(Part):\n    def open(self, other: Part) -> None:\n        self.other = other",
        "class Owner:\n    x: Part",
        "class Owner:\n    def __init__(self) -> None:\n        self.x: int",
    ],
)
def test_a_place_of_any_form_is_found(text: str) -> None:
    assert len(places({"it": ast.parse(_CLASSES + text)})) == 1


@pytest.mark.parametrize(
    "text",
    [
        "part.any = 3",
        "part = Part()\npart.lines = found",
        "part = Part()\npart.word = Word()",
        "part = Part()\npart.maybe = Part()",
        "part = Part()\npart.then = None",
        "unknown.count = other.count",
        "class Owner:\n    def __init__(self, looks: Looks) -> None:\n        self.x = looks",
        "class Owner:\n    def __init__(self) -> None:\n        self.x: int\n        self.x = 3",
        "class Owner:\n    def again(self) -> None:\n        self.x = Part()",
        "class Owner:\n    def count(self, lines: list[str]) -> None:\n        self.x = lines",
        "class Heir(Part):\n    def again(self) -> None:\n        self.other = Part()",
        "class Row(Struct):\n    x: Part",
    ],
)
def test_data_and_state_are_no_place(text: str) -> None:
    assert places({"it": ast.parse(_CLASSES + text)}) == []
