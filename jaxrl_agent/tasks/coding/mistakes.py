"""Plausible wrong programs: a reference with one constant, operator, comparison or connective changed in place."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "%"),
    ast.Div: ("/", "//"),
    ast.Mod: ("%", "//"),
}
_CONNECTIVES = {ast.And: ("and", "or"), ast.Or: ("or", "and")}

Edit = tuple[int, int, str]  # bytes from, bytes to, new text


def mutants(program: str) -> list[str]:
    """Change a program in one place, in every way that this file knows.

    The layout stays as it is, so that nothing but the mistake tells a mutant from the program.

    Args:
        program: Python source that is trusted, such as a reference solution.

    Returns:
        the changed programs that can still be parsed, in the order of their places; none if the program cannot.
    """
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError):
        return []
    source = program.encode()
    starts = [0]
    for line in source.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    edits = sorted(set(_edits(tree, source, starts)))
    changed = [(source[:start] + new.encode() + source[end:]).decode() for start, end, new in edits]
    return [text for text in dict.fromkeys(changed) if text != program and _parses(text)]


def _edits(node: ast.AST, source: bytes, starts: list[int]) -> Iterator[Edit]:
    """Changes within a node; text inside f-strings has no reliable place before Python 3.12."""
    if isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.Constant) and type(node.value) is int:
        start, end = _span(node, starts)
        yield from ((start, end, str(node.value + change)) for change in (1, -1) if node.value + change >= 0)
    for left, operator, right in _joints(node):
        old, new = operator
        start, end = _span(left, starts)[1], _span(right, starts)[0]
        place = source.find(old.encode(), start, end)
        if place >= 0:
            yield place, place + len(old.encode()), new
    for child in ast.iter_child_nodes(node):
        yield from _edits(child, source, starts)


def _joints(node: ast.AST) -> Iterator[tuple[ast.expr, tuple[str, str], ast.expr]]:
    """Pairs of neighbouring operands, and what stands between them with what may stand there instead."""
    if isinstance(node, ast.Compare):
        operands, operators, table = [node.left, *node.comparators], node.ops, _COMPARISONS
    elif isinstance(node, ast.BoolOp):
        operands, operators, table = node.values, [node.op] * (len(node.values) - 1), _CONNECTIVES
    elif isinstance(node, ast.BinOp):
        operands, operators, table = [node.left, node.right], [node.op], _ARITHMETIC
    else:
        return
    for left, operator, right in zip(operands, operators, operands[1:], strict=False):
        if type(operator) in table:
            yield left, table[type(operator)], right


def _span(node: ast.AST, starts: list[int]) -> tuple[int, int]:
    """Bytes that a node stands in."""
    return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset


def _parses(program: str) -> bool:
    try:
        ast.parse(program)
    except (SyntaxError, ValueError):
        return False
    return True
