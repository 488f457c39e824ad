"""Errors say the rule, the value that broke it, and the remedy, in one line."""

from __future__ import annotations

import inspect

import pytest

from jaxrl_agent import errors
from jaxrl_agent.errors import ConfigError, JaxrlError

CLASSES = [
    cls for cls in vars(errors).values() if inspect.isclass(cls) and issubclass(cls, JaxrlError) and cls != JaxrlError
]


def test_an_error_says_rule_value_and_remedy():
    error = ConfigError("group size must be at least 2", value=1, remedy="Raise it.")
    assert str(error) == "group size must be at least 2; got 1. Raise it."
    assert (error.rule, error.value, error.remedy) == ("group size must be at least 2", 1, "Raise it.")


def test_value_and_remedy_may_be_left_out():
    assert str(JaxrlError("a grid needs a task")) == "a grid needs a task."
    assert str(JaxrlError("a grid needs a task", remedy="Add one.")) == "a grid needs a task. Add one."


@pytest.mark.parametrize("value", [None, "", 0, False])
def test_a_value_that_is_empty_is_shown_all_the_same(value):
    assert str(JaxrlError("x must be set", value=value)) == f"x must be set; got {value!r}."


def test_a_value_of_many_lines_stays_on_one():
    assert "\n" not in str(JaxrlError("text must be short", value="a\nb"))


@pytest.mark.parametrize("cls", CLASSES)
def test_every_class_is_caught_by_the_base_and_by_a_standard_type_and_says_what_it_means(cls):
    standard = [base for base in cls.__mro__ if base.__module__ == "builtins" and base not in (object, BaseException)]
    assert len(standard) > 1, "besides Exception, one class of the standard library"
    assert cls.__doc__
    with pytest.raises(standard[0]):
        raise cls("rule", value=1)


def test_there_are_errors_to_test():
    assert len(CLASSES) >= 9
