"""Mutants: one place changed, layout kept, always a program."""

from __future__ import annotations

import ast
import difflib

import pytest

from jaxrl_agent.config import CodingConfig
from jaxrl_agent.tasks.coding.mistakes import mutants
from jaxrl_agent.tasks.coding.sources import load_problems


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("f=lambda x:x+3", ["f=lambda x:x-3", "f=lambda x:x+2", "f=lambda x:x+4"]),
        ("print(0)", ["print(1)"]),
        ("a  <  b <= c", ["a  <=  b <= c", "a  <  b < c"]),
        ("x = (a) * (b)  # a * b", ["x = (a) + (b)  # a * b"]),
        ("a and b and c", ["a or b and c", "a and b or c"]),
        ("a not in b", ["a in b"]),
        ("v[1:-2]", ["v[0:-2]", "v[2:-2]", "v[1:-1]", "v[1:-3]"]),
        ("x = 'é' + y\nz = 'ü' % w", ["x = 'é' - y\nz = 'ü' % w", "x = 'é' + y\nz = 'ü' // w"]),
        (
            "if a==b:\n\treturn_ = 0x10",
            ["if a!=b:\n\treturn_ = 0x10", "if a==b:\n\treturn_ = 15", "if a==b:\n\treturn_ = 17"],
        ),
    ],
)
def test_one_place_is_changed_and_the_layout_stays(program, expected):
    assert mutants(program) == expected


@pytest.mark.parametrize("program", ["", "pass", "True", "f'{x+1}'", "def (", "x = '1 + 2'"])
def test_programs_without_a_place_to_change_have_no_mutants(program):
    assert mutants(program) == []


def test_mutants_of_real_solutions_are_programs_that_differ_in_one_line():
    problems = load_problems(CodingConfig(source="own"), "train", count=100)
    counts = []
    for problem in problems:
        found = mutants(problem.solution)
        counts.append(len(found))
        assert len(set(found)) == len(found)
        for mutant in found:
            ast.parse(mutant)
            changes = [
                line for line in difflib.ndiff(problem.solution.split("\n"), mutant.split("\n")) if line[0] == "+"
            ]
            assert len(changes) == 1
    assert sum(counts) > 5 * len(problems)
