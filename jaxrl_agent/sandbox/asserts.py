"""Turn the asserts of MBPP and HumanEval into tests for the judge, so that what they expect stays out of the sandbox.

An assert that ran beside the candidate could be read, patched or skipped by it. Here each one is taken apart into a
call that the candidate answers and a question that is answered elsewhere:

- `assert f(1, 2) == 3`, all literal: `{"entry_point", "args", "expected"}`.
- `assert f(Node(1)) == 3`, an argument only the candidate can make: `{"call", "expected"}`.
- `assert abs(f(1) - 0.5) < 1e-6` and any other expression with one call of literal arguments: a `checker` that runs the
  expression on the value, in a sandbox of its own.
- Asserts in loops: the reference solution is recorded under them (20 calls at most), which gives arguments and values;
  where more than equality is asked, the asserts are run again on the answer, in a sandbox of its own.

Literal asserts hold to Python's `==`: no tolerance, a tuple is no list; but a boolean is no number.
"""

from __future__ import annotations

import ast
import operator
from typing import Any

from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.sandbox.compare import PYTHON_EQUALITY
from jaxrl_agent.sandbox.judge import Sessions, run_call, sandbox_sessions
from jaxrl_agent.sandbox.results import Limits

_ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_NOT_LITERAL = (ValueError, TypeError, ArithmeticError)
MAX_POWER = 1000
MAX_RECORDED = 20


def literal(node: ast.expr) -> object:
    """Value of an expression made of literals and small arithmetic; nothing in it is called.

    Raises:
        ValueError: any other expression; TypeError, ArithmeticError: one without a value.
    """
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base, exponent = literal(node.left), literal(node.right)
        if all(type(part) is int and abs(part) <= MAX_POWER for part in (base, exponent)):
            return base**exponent
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = literal(node.left), literal(node.right)
        if type(node.op) is not ast.Mult or all(type(part) in (int, float) for part in (left, right)):
            return _ARITHMETIC[type(node.op)](left, right)
    if isinstance(node, ast.UnaryOp) and type(node.op) in _ARITHMETIC:
        return _ARITHMETIC[type(node.op)](literal(node.operand))
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        kind = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
        return kind(literal(item) for item in node.elts)
    if isinstance(node, ast.Dict) and None not in node.keys:
        return {literal(key): literal(item) for key, item in zip(node.keys, node.values, strict=True)}
    return ast.literal_eval(node)


def from_assert(
    text: str, *, entry_point: str = "", setup: str = "", reference: str = "", by_checker: bool = False
) -> dict[str, Any]:
    """Turn one assert into a test for `judge_program`.

    Args:
        text: the assert statement.
        entry_point: name of the candidate's function; "" for that of the only call on the left of `==`.
        setup: lines that make names which the assert uses from those of the candidate.
        reference: program that defines names which a checker needs, such as a reference solution.
        by_checker: whether Python itself compares, in a checker: for sources that take 1 for True (MBPP's 414).

    Raises:
        ArgumentError: the text is no assert, or the candidate is not called exactly once.
    """
    statement = ast.parse(text.strip()).body
    if len(statement) != 1 or not isinstance(statement[0], ast.Assert):
        raise ArgumentError("a test must be one assert statement", value=text)
    condition = statement[0].test
    left, right = _sides(condition)
    name = entry_point or (left.func.id if isinstance(left, ast.Call) and isinstance(left.func, ast.Name) else "")
    calls = [node for node in ast.walk(condition) if _calls(node, name)]
    if len(calls) != 1:
        raise ArgumentError("an assert must call the candidate exactly once", value=text, remedy="Record it instead.")
    call = calls[0]
    try:
        arguments = {
            "args": [literal(item) for item in call.args],
            "kwargs": {item.arg: literal(item.value) for item in call.keywords},
        }
    except _NOT_LITERAL:
        return _from_equality(left, right, call, setup=setup)
    test = {"entry_point": name, **arguments}
    if left is call and not by_checker:
        try:
            return {**test, "expected": literal(right), "rules": PYTHON_EQUALITY}
        except _NOT_LITERAL:
            pass  # its right side must be computed
    return {**test, "checker": _checker(condition, call, reference)}


def _from_equality(left: ast.expr, right: ast.expr | None, call: ast.Call, *, setup: str) -> dict[str, Any]:
    try:
        if left is call and right is not None:
            return {"call": ast.unparse(left), "setup": setup, "expected": literal(right), "rules": PYTHON_EQUALITY}
    except _NOT_LITERAL:
        pass
    raise ArgumentError("only f(...) == literal may have arguments that are no literals", value=ast.unparse(left))


def _sides(condition: ast.expr) -> tuple[ast.expr, ast.expr | None]:
    """Both sides of `left == right` or `left is right`, else the whole."""
    if isinstance(condition, ast.Compare) and len(condition.ops) == 1:
        right = condition.comparators[0]
        same_object = isinstance(condition.ops[0], ast.Is) and isinstance(right, ast.Constant)
        if isinstance(condition.ops[0], ast.Eq) or same_object:
            return condition.left, right
    return condition, None


def _calls(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _checker(condition: ast.expr, call: ast.Call, reference: str) -> str:
    class Replace(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            return ast.Name("_value", ast.Load()) if node is call else self.generic_visit(node)

    words = ast.unparse(Replace().visit(condition))
    return f"{reference}\nimport math\nimport sys\n\ndef check(_args, _value):\n    return bool({words})\n"


def from_check(
    source: str, *, entry_point: str, reference: str, limits: Limits | None = None, sessions: Sessions | None = None
) -> list[dict[str, Any]]:
    """Turn HumanEval's `check(candidate)` into tests for `judge_program`.

    Args:
        source: text that defines `check`.
        entry_point: name of the candidate's function.
        reference: reference solution, prompt included.
        limits: of the recording, where one is needed.
        sessions: what opens sandboxes; None for the real ones.

    Raises:
        ArgumentError: the source defines no `check`.
        SandboxError: the reference could not be recorded.
    """
    found = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == "check"]
    if len(found) != 1:
        raise ArgumentError("the source must define check(candidate) once", value=entry_point)
    statements = [node for node in found[0].body if any(_calls(part, "candidate") for part in ast.walk(node))]
    try:
        tests = [from_assert(ast.unparse(node), entry_point="candidate", reference=reference) for node in statements]
    except ArgumentError:
        tests = []
    if not tests or any("call" in test for test in tests):
        return _recorded(found[0], source, entry_point, reference, limits or Limits(), sessions or sandbox_sessions)
    return [{**test, "entry_point": entry_point} for test in tests]


# ---- asserts in loops

# Randomness of the given check is fixed, so that it asks the same when it is recorded and when it is replayed.
_RECORD = """
import copy, random
def _record():
    calls = []
    def candidate(*args):
        calls.append([copy.deepcopy(args)])
        calls[-1].append(copy.deepcopy({entry_point}(*args)))
        return calls[-1][1]
    random.seed(0)
    check(candidate)
    return calls
"""
# One call gets the answer under test, all others that of the reference: the check passes if the answer is right.
_REPLAY = """
import random
_given_check = check
def check(_args, _value):
    left = iter(range({number}, -1, -1))
    random.seed(0)
    _given_check(lambda *args: _value if next(left, -1) == 0 else {entry_point}(*args))
    return True
"""


def _recorded(
    check: ast.FunctionDef, source: str, entry_point: str, reference: str, limits: Limits, sessions: Sessions
) -> list[dict[str, Any]]:
    program = f"{reference}\n{source}\n{_RECORD.format(entry_point=entry_point)}"
    calls = run_call({"program": program, "call": "_record()"}, limits=limits, sessions=sessions)
    plain = sum(
        isinstance(node, ast.Assert)
        and isinstance(node.test, ast.Compare)
        and isinstance(node.test.ops[0], ast.Eq)
        and _calls(node.test.left, "candidate")
        for node in ast.walk(check)
    )
    equalities_only = plain == sum(_calls(node, "candidate") for node in ast.walk(check))
    tests = []
    for number, (args, value) in enumerate(calls[:MAX_RECORDED]):
        test = {"entry_point": entry_point, "args": list(args)}
        if equalities_only:
            tests.append({**test, "expected": value, "rules": PYTHON_EQUALITY})
        else:
            replay = _REPLAY.format(number=number, entry_point=entry_point)
            tests.append({**test, "checker": f"{reference}\n{source}\n{replay}"})
    return tests
