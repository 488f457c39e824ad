"""Programs in replies: the last closed block outside reasoning, and names that layout does not change."""

from __future__ import annotations

import pytest

from jaxrl_agent.tasks.coding.reading import last_block, short_name


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```\nx\n```", "x\n"),
        ("```python\nx\n\ny\n```\n", "x\n\ny\n"),
        ("so:\n```py\nold\n```\nno:\n```\nnew\n``` \nbye", "new\n"),
        ("````\na\n```\nb\n````", "a\n```\nb\n"),
        ("  ```\n  if x:\n    y\n z\n  ```", "if x:\n  y\nz\n"),
        ("```\r\nx\r\n```\r\n", "x\r\n"),
        ("```\nx\n```\n```\nnever closed", "x\n"),
        ('```\nx = """\n\\`\\`\\`\n"""\n```', 'x = """\n\\`\\`\\`\n"""\n'),
        ("```\na\x0cb\u2028c\n```", "a\x0cb\u2028c\n"),
    ],
)
def test_the_last_closed_block_is_the_program(text, program):
    assert last_block(text) == program


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "```\nx",
        "```x```",
        "```\n```",
        "```\n \n\t\n```",
        "    ```\n    x\n    ```",
        "``\nx\n``",
        "x ```\ny\n```",
    ],
)
def test_text_without_a_closed_block_that_holds_anything_is_no_program(text):
    assert last_block(text) is None


def test_the_last_block_counts_even_if_it_is_empty():
    assert last_block("```\nx\n```\n```\n\n```") is None


def test_names_of_programs_do_not_depend_on_layout():
    program = "def f(x):\n    return x+1\n"
    same = "# adds\n\ndef f( x ):  # one\n\n  return x + 1"
    assert short_name(program) == short_name(same)
    others = ["def f(x):\n    return x+2\n", "def f(x): return x+1\n", "f=lambda x:x+1", ""]
    assert len({short_name(text) for text in [program, *others]}) == 5


def test_indentation_that_changes_the_meaning_changes_the_name():
    inside, outside = "while a:\n    b()\n    c()\n", "while a:\n    b()\nc()\n"
    assert short_name(inside) != short_name(outside)


@pytest.mark.parametrize("text", ["def (", "'''", "  x\n y", "x = '\ud800", "\x00", "(" * 5000, "é€🙂 = 1"])
def test_whatever_a_model_writes_has_a_name(text):
    assert len(short_name(text)) == 8
    assert short_name(text) == short_name(f"{text}\n")
