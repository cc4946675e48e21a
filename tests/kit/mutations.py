"""Small changes of a source text, one at a time: the mutations that a good test turns red.

Owns which changes there are and where they stand in the text. All else of the text stays as it is, so line
numbers and comments hold. Left alone are docstrings, annotations, decorators, assertions and log lines, since
a change there is no fault.

Knows nothing of: files, tests, which mutation is tried.
"""

import ast
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

_COMPARED: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_COMPUTED: Final[dict[type[ast.operator], str]] = {ast.Add: "-", ast.Sub: "+"}
_LOGS: Final = ("log.", "log_line(", "print(")


class Mutation(Struct, frozen=True):
    """One change of a text."""

    line: int
    kind: str
    old: str
    new: str
    start: int
    end: int
    """Where `old` stands in the encoded text."""

    def applied(self, text: str) -> str:
        """The text with this change."""
        data = text.encode()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()


def mutations_of(text: str) -> list[Mutation]:
    """Return every mutation of this source text, in the order of the text."""
    tree = ast.parse(text)
    lines = text.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    found: list[Mutation] = []
    for node, kind, new in _changes(tree):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        old = text.encode()[start:end].decode()
        found.append(Mutation(node.lineno, kind, old, new.replace("{}", old), start, end))
    return sorted(found, key=lambda each: (each.start, each.end, each.new))


_Change = tuple[ast.expr | ast.stmt, str, str]
"""A node, the kind of change, and its new text; `{}` stands for the old one."""


def _changes(node: ast.AST) -> Iterator[_Change]:
    for child in _changeable(node):
        if isinstance(child, ast.stmt):
            yield from _of_statement(child)
        elif isinstance(child, ast.expr):
            yield from _of_expression(child)
        yield from _changes(child)


def _changeable(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node in which a change is a fault."""
    if isinstance(node, ast.Assert | ast.JoinedStr) or _is_log_line(node) or _is_for_types(node):
        return
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "type_params", "bases"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child


def _is_log_line(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and ast.unparse(node).startswith(_LOGS)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _of_statement(node: ast.stmt) -> Iterator[_Change]:
    match node:
        case _ if _is_log_line(node) or _is_for_types(node):
            return
        case ast.Expr(ast.Call() | ast.Await()) | ast.AugAssign() | ast.Delete() | ast.Raise():
            yield node, "statement removed", "pass"
        case ast.Break() | ast.Continue():
            yield node, "statement removed", "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield node, "statement removed", "pass"
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield node, "nothing returned", "return None"
        case ast.If(test=test) | ast.While(test=test) if not isinstance(test, ast.Constant):
            yield test, "condition negated", "(not ({}))"
        case _:
            return


def _of_expression(node: ast.expr) -> Iterator[_Change]:
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _COMPARED:
            new = f"({ast.unparse(left)} {_COMPARED[type(operator)]} {ast.unparse(right)})"
            yield node, "comparison changed", new
        case ast.BoolOp(op=operator, values=values):
            other = " or " if isinstance(operator, ast.And) else " and "
            yield node, "and / or exchanged", f"({other.join(f'({ast.unparse(each)})' for each in values)})"
        case ast.IfExp(test=test):
            yield test, "condition negated", "(not ({}))"
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _COMPUTED:
            new = f"(({ast.unparse(left)}) {_COMPUTED[type(operator)]} ({ast.unparse(right)}))"
            yield node, "+ / - exchanged", new
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, "not removed", f"({ast.unparse(operand)})"
        case ast.Constant(value=bool() as value):
            yield node, "constant changed", str(not value)
        case ast.Constant(value=int() | float() as value):
            yield node, "constant changed", f"({value + 1})"
        case _:
            return


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
