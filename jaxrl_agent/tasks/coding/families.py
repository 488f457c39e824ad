"""Families of small problems: a grid of parameters, and for each point of it words, a program, answers and inputs.

Statements and programs are short enough for a model of 100,000 parameters. A neighbour on the grid is a plausible wrong
program: a constant off by one, another operator, another slice, another order.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
import random
from collections.abc import Callable, Iterator
from typing import Any

Params = tuple[Any, ...]

_COMPARE = {">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le}
_ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_AGGREGATE = {"sum": sum, "max": max, "min": min}
_CASES = {"": str, ".upper()": str.upper, ".lower()": str.lower, ".swapcase()": str.swapcase}
_CASE_WORDS = {"": "", ".upper()": ", upper case", ".lower()": ", lower case", ".swapcase()": ", swap case"}
_SEPARATORS = tuple("-+*/.:;=_|#")
_REVERSED = ("", "[::-1]")


@dataclasses.dataclass(frozen=True)
class Family:
    """Problems that differ in parameters alone.

    Attributes:
        name: of the family.
        style: "stdin", one line in and one line out, or "function", a function `f` of one argument.
        axes: values of each parameter; neighbours on an axis make plausible wrong programs.
        words: parameters -> what is asked, without an example.
        program: parameters -> reference solution.
        answer: parameters and input -> what is printed or returned.
        sample: random generator and parameters -> input: a line, or the argument.
        valid: whether a point of the grid is a problem.
        content: name that points are split under; families that ask the same share it.
        same_as: parameters -> the one point that stands for all that have the same answers (`x<=4` for `x<5`).
    """

    name: str
    style: str
    axes: tuple[tuple[Any, ...], ...]
    words: Callable[..., str]
    program: Callable[..., str]
    answer: Callable[[Params, Any], Any]
    sample: Callable[[random.Random, Params], Any]
    valid: Callable[..., bool] = lambda *params: True
    content: str = ""
    same_as: Callable[..., Params] = lambda *params: params

    def points(self) -> Iterator[Params]:
        """Give every valid point of the grid, in order."""
        return (params for params in itertools.product(*self.axes) if self.valid(*params))

    def neighbours(self, params: Params) -> list[Params]:
        """Points that differ in one parameter, by one place of its axis."""
        found = []
        for place, axis in enumerate(self.axes):
            here = axis.index(params[place])
            values = {axis[(here + shift) % len(axis)] for shift in (-1, 1)} - {params[place]}
            changed = [(*params[:place], value, *params[place + 1 :]) for value in sorted(values, key=axis.index)]
            found += [other for other in changed if self.valid(*other)]
        return found


def _letters(rng: random.Random, length: int, alphabet: str = "abcdefghijklmnopqrstuvwxyzABCDEFGH") -> str:
    return "".join(rng.choice(alphabet) for _ in range(length))


def _words(rng: random.Random) -> str:
    return " ".join(_letters(rng, rng.randint(1, 3), "abcdefgh") for _ in range(rng.randint(3, 5)))


def _near(rng: random.Random, value: int, reach: int) -> int:
    """A number that is often a neighbour of `value`, where off-by-one errors show."""
    return value + (rng.randint(-1, 1) if rng.random() < 0.6 else rng.randint(-reach, reach))


def _case(name: str) -> str:
    return _CASE_WORDS[name]


def _reversal(name: str) -> str:
    return ", reversed" if name else ""


# ---- numbers


_AFFINE = (tuple(range(2, 31)), tuple(b for b in range(-20, 21) if b))


def _filter_program(kind: str, compare: str, bound: int) -> str:
    condition = f"x{compare}{bound}"
    return {
        "sum": f"f=lambda v:sum(x for x in v if {condition})",
        "number": f"f=lambda v:sum({condition} for x in v)",
        "list": f"f=lambda v:[x for x in v if {condition}]",
    }[kind]


def _filter_answer(params: Params, numbers: list[int]) -> Any:
    kind, compare, bound = params
    kept = [x for x in numbers if _COMPARE[compare](x, bound)]
    return {"sum": sum(kept), "number": len(kept), "list": kept}[kind]


def _closed(compare: str, bound: int) -> tuple[str, int]:
    """The same comparison of whole numbers with `<=` or `>=`."""
    return {"<": ("<=", bound - 1), ">": (">=", bound + 1)}.get(compare, (compare, bound))


def _modulus_program(kind: str, modulus: int, rest: int) -> str:
    condition, numbers = f"x%{modulus}=={rest}", "map(int,input().split())"
    part = f"x for x in {numbers}if {condition}" if kind == "sum" else f"{condition} for x in {numbers}"
    return f"print(sum({part}))"


def _modulus_answer(params: Params, line: str) -> int:
    kind, modulus, rest = params
    kept = [x for x in map(int, line.split()) if x % modulus == rest]
    return sum(kept) if kind == "sum" else len(kept)


def _modulus_sample(rng: random.Random, params: Params) -> str:
    _, modulus, rest = params
    return " ".join(
        str(max(0, modulus * rng.randint(0, 3) + _near(rng, rest, modulus))) for _ in range(rng.randint(3, 5))
    )


def _piecewise_answer(params: Params, n: int) -> int:
    compare, bound, first, c, second, d = params
    return _ARITHMETIC[first](n, c) if _COMPARE[compare](n, bound) else _ARITHMETIC[second](n, d)


def _piecewise_alike(compare: str, bound: int, s: str, c: int, t: str, d: int) -> Params:
    return (">", bound, s, c, t, d) if compare == ">" else (">", bound - 1, t, d, s, c)


def _picks_answer(params: Params, numbers: list[int]) -> int:
    i, sign, j, c = params
    ordered = sorted(numbers)
    return _ARITHMETIC[sign](ordered[i], ordered[j]) + c


NUMBERS = (
    Family(
        "affine",
        "stdin",
        _AFFINE,
        words=lambda a, b: f"Read n. Print n*{a}{b:+d}.",
        program=lambda a, b: f"print(int(input())*{a}{b:+d})",
        answer=lambda p, line: int(line) * p[0] + p[1],
        sample=lambda rng, p: str(rng.choice((0, 1, rng.randint(2, 30)))),
    ),
    Family(
        "find_constant",
        "function",
        _AFFINE,
        words=lambda a, b: f"f(n) is n*{a}+b. Find b.",
        program=lambda a, b: f"f=lambda n:n*{a}{b:+d}",
        answer=lambda p, n: n * p[0] + p[1],
        sample=lambda rng, p: rng.randint(1, 40),
        content="affine",
    ),
    Family(
        "pair",
        "stdin",
        (tuple(range(2, 16)), ("+", "-"), tuple(range(2, 16))),
        words=lambda a, sign, b: f"Read x y. Print {a}*x{sign}{b}*y.",
        program=lambda a, sign, b: f"x,y=map(int,input().split());print({a}*x{sign}{b}*y)",
        answer=lambda p, line: _ARITHMETIC[p[1]](p[0] * int(line.split()[0]), p[2] * int(line.split()[1])),
        sample=lambda rng, p: f"{rng.choice((0, 1, rng.randint(2, 9)))} {rng.choice((0, 1, rng.randint(2, 9)))}",
    ),
    Family(
        "piecewise",
        "function",
        ((">", "<"), tuple(range(1, 9)), ("+", "-", "*"), tuple(range(2, 7)), ("+", "-", "*"), tuple(range(2, 7))),
        words=lambda compare, bound, s, c, t, d: f"f(n) is n{s}{c} if n{compare}{bound}, else n{t}{d}.",
        program=lambda compare, bound, s, c, t, d: f"f=lambda n:n{s}{c} if n{compare}{bound} else n{t}{d}",
        answer=_piecewise_answer,
        sample=lambda rng, p: _near(rng, p[1], 12),
        valid=lambda compare, bound, s, c, t, d: (s, c) != (t, d),
        same_as=_piecewise_alike,
    ),
    Family(
        "clamp",
        "function",
        (tuple(range(0, 21)), tuple(range(3, 41))),
        words=lambda low, high: f"f(n) is n, but at least {low} and at most {high}.",
        program=lambda low, high: f"f=lambda n:max({low},min({high},n))",
        answer=lambda p, n: max(p[0], min(p[1], n)),
        sample=lambda rng, p: _near(rng, rng.choice(p), 9),
        valid=lambda low, high: low + 2 <= high,
    ),
    Family(
        "digits",
        "stdin",
        (("sum", "max", "min"), tuple(range(2, 10)), tuple(range(1, 21))),
        words=lambda kind, a, b: f"Read n. Print the {kind} of its digits times {a}, plus {b}.",
        program=lambda kind, a, b: f"print({kind}(map(int,input()))*{a}+{b})",
        answer=lambda p, line: _AGGREGATE[p[0]](map(int, line)) * p[1] + p[2],
        sample=lambda rng, p: str(rng.choice((rng.randint(0, 9), rng.randint(10, 99), rng.randint(100, 9999)))),
    ),
    Family(
        "ladder",
        "stdin",
        (tuple(range(0, 10)), tuple(range(2, 13)), ("below", "up to")),
        words=lambda first, gap, end: f"Read n. Print the sum of {first}, {first + gap}, {first + 2 * gap}... {end} n.",
        program=lambda first, gap, end: (
            f"print(sum(range({first},int(input()){'' if end == 'below' else '+1'},{gap})))"
        ),
        answer=lambda p, line: sum(range(p[0], int(line) + (p[2] == "up to"), p[1])),
        sample=lambda rng, p: str(max(0, _near(rng, p[0] + p[1] * rng.randint(0, 6), p[1]))),
        same_as=lambda first, gap, end: (first or gap, gap, end),  # 0 adds nothing to a sum
    ),
    Family(
        "modulus",
        "stdin",
        (("sum", "number"), tuple(range(2, 21)), tuple(range(0, 20))),
        words=lambda kind, modulus, rest: f"Read ints x. Print the {kind} of those with x%{modulus}=={rest}.",
        program=_modulus_program,
        answer=_modulus_answer,
        sample=_modulus_sample,
        valid=lambda kind, modulus, rest: rest < modulus,
    ),
    Family(
        "threshold",
        "function",
        (("sum", "number", "list"), (">", "<", ">=", "<="), tuple(range(1, 31))),
        words=lambda kind, compare, bound: f"f(v) is the {kind} of the x in v with x{compare}{bound}.",
        program=_filter_program,
        answer=_filter_answer,
        sample=lambda rng, p: [_near(rng, p[2], 12) for _ in range(rng.randint(2, 5))],
        same_as=lambda kind, compare, bound: (kind, *_closed(compare, bound)),
    ),
    Family(
        "picks",
        "function",
        ((0, 1, 2, -3, -2, -1), ("+", "-", "*"), (0, 1, 2, -3, -2, -1), tuple(range(1, 10))),
        words=lambda i, sign, j, c: f"w is v sorted. f(v) is w[{i}]{sign}w[{j}]+{c}.",
        program=lambda i, sign, j, c: f"f=lambda v:sorted(v)[{i}]{sign}sorted(v)[{j}]+{c}",
        answer=_picks_answer,
        sample=lambda rng, p: rng.sample(range(10), rng.randint(4, 6)),
        valid=lambda i, sign, j, c: i != j and (sign == "-" or i % 6 < j % 6),
    ),
)


# ---- strings and words


def _slice(first: int, last: int) -> str:
    return f"[{first or ''}:{-last if last else ''}]"


def _slice_words(first: int, last: int, back: str, case: str) -> str:
    ends = [f"first {first}"] * bool(first) + [f"last {last}"] * bool(last)
    return f"f(s) is s without its {' and '.join(ends)} letters{_reversal(back)}{_case(case)}."


def _slice_answer(params: Params, text: str) -> str:
    first, last, back, case = params
    kept = text[first : len(text) - last]
    return _CASES[case](kept[::-1] if back else kept)


def _stride_answer(params: Params, text: str) -> str:
    first, gap, back, case = params
    kept = text[first::gap]
    return _CASES[case](kept[::-1] if back else kept)


_ORDERS = {
    "as they are": (list, "{}"),
    "sorted": (sorted, "sorted({})"),
    "reversed": (lambda words: words[::-1], "{}[::-1]"),
    "sorted backwards": (lambda words: sorted(words)[::-1], "sorted({})[::-1]"),
}


def _join_program(order: str, count: int, separator: str, case: str) -> str:
    words = _ORDERS[order][1].format(f"input(){case}.split()")
    return f"print('{separator}'.join({words}{f'[:{count}]' if count else ''}))"


def _join_words(order: str, count: int, separator: str, case: str) -> str:
    which = f"the first {count}" if count else "all"
    return f"Read words. Take them {order}{_case(case)}. Print {which} joined by '{separator}'."


def _join_answer(params: Params, line: str) -> str:
    order, count, separator, case = params
    words = _ORDERS[order][0](_CASES[case](line).split())
    return separator.join(words[:count] if count else words)


TEXT = (
    Family(
        "slice",
        "function",
        (tuple(range(0, 6)), tuple(range(0, 6)), _REVERSED, tuple(_CASES)),
        words=_slice_words,
        program=lambda first, last, back, case: f"f=lambda s:s{_slice(first, last)}{back}{case}",
        answer=_slice_answer,
        sample=lambda rng, p: _letters(rng, p[0] + p[1] + rng.randint(1, 5)),
        valid=lambda first, last, back, case: first + last > 0,
    ),
    Family(
        "stride",
        "function",
        (tuple(range(0, 6)), tuple(range(2, 7)), _REVERSED, tuple(_CASES)),
        words=lambda first, gap, back, case: (
            f"f(s) is each {gap}-th letter of s from index {first}{_reversal(back)}{_case(case)}."
        ),
        program=lambda first, gap, back, case: f"f=lambda s:s[{first}::{gap}]{back}{case}",
        answer=_stride_answer,
        sample=lambda rng, p: _letters(rng, p[0] + rng.randint(1, 2 * p[1] + 2)),
    ),
    Family(
        "repeat",
        "stdin",
        (tuple(range(2, 10)), _SEPARATORS, _REVERSED, tuple(_CASES)[:3]),
        words=lambda count, separator, back, case: (
            f"Read s. Print s{_reversal(back)}{_case(case)}, {count} times joined by '{separator}'."
        ),
        program=lambda count, separator, back, case: f"print('{separator}'.join([input(){back}{case}]*{count}))",
        answer=lambda p, line: p[1].join([_CASES[p[3]](line[::-1] if p[2] else line)] * p[0]),
        sample=lambda rng, p: _letters(rng, rng.randint(1, 3)),
    ),
    Family(
        "letters",
        "function",
        (tuple("abcdefghijklmnop"), ("+", "-"), (1, 2, 3), tuple("abcdefghijklmnop")),
        words=lambda a, sign, weight, b: (
            f"f(s) counts '{a}' in s, {'plus' if sign == '+' else 'minus'} {weight} times the count of '{b}'."
        ),
        program=lambda a, sign, weight, b: (
            f"f=lambda s:s.count('{a}'){sign}{f'{weight}*' if weight > 1 else ''}s.count('{b}')"
        ),
        answer=lambda p, text: _ARITHMETIC[p[1]](text.count(p[0]), p[2] * text.count(p[3])),
        sample=lambda rng, p: _letters(rng, rng.randint(2, 8), p[0] * 3 + p[3] * 3 + "abcdefghijklmnop"),
        valid=lambda a, sign, weight, b: a != b and (a < b or sign == "-" or weight > 1),
    ),
    Family(
        "join",
        "stdin",
        (tuple(_ORDERS), (0, 2, 3), _SEPARATORS, tuple(_CASES)[:2]),
        words=_join_words,
        program=_join_program,
        answer=_join_answer,
        sample=lambda rng, p: _words(rng),
    ),
)

FAMILIES = {family.name: family for family in (*NUMBERS, *TEXT)}
