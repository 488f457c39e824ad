"""The live view: lines now and then in a pipe, a bar on a terminal, silence where asked."""

from __future__ import annotations

import io

import pytest

from jaxrl_agent import progress
from jaxrl_agent.progress import Display


class Clock:
    """Time that a test moves by hand."""

    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", clock)
    return clock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_in_a_pipe_the_first_line_comes_at_once_and_the_next_after_15_seconds(clock):
    stream = io.StringIO()
    with Display(stream) as display:
        display.start("training", 4)
        for done, seconds in ((1, 10), (2, 4), (3, 20), (4, 0)):
            clock.now += seconds
            display.update(done, {"success": 0.51234, "tokens_per_s": 12345.6})
    assert stream.getvalue().splitlines() == [
        "training 1/4  success 0.512  tokens_per_s 12,346  left 0:30",
        "training 3/4  success 0.512  tokens_per_s 12,346  left 0:11",
        "training 4/4  success 0.512  tokens_per_s 12,346  left 0:00",
    ]


def test_the_time_left_counts_only_what_was_done_here(clock):
    stream = io.StringIO()
    display = Display(stream)
    display.start("training", 100, done=90)
    clock.now += 10
    display.update(92, {})
    assert stream.getvalue().strip().endswith("left 0:40")


def test_before_anything_was_done_here_the_time_left_is_unknown(clock):
    stream = io.StringIO()
    display = Display(stream)
    display.start("training", 5, done=5)
    display.update(5, {"T": "4"})
    assert stream.getvalue() == "training 5/5  T 4  left ?\n"


def test_a_line_can_be_said_between(clock):
    stream = io.StringIO()
    Display(stream).say("warning: x")
    assert stream.getvalue() == "warning: x\n"


def test_a_quiet_display_writes_nothing(clock):
    stream = Terminal()
    with Display(stream, quiet=True) as display:
        display.start("training", 1)
        display.update(1, {})
        display.say("x")
    assert stream.getvalue() == ""


def test_on_a_terminal_there_is_a_bar_with_the_values_and_it_ends(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with Display(stream) as display:
        display.start("warm start", 2)
        display.update(1, {"loss": 0.5})
        display.say("[bold] is text")
        display.start("training", 3)
        display.update(3, {"success": 1.0})
    text = stream.getvalue()
    assert "warm start" in text
    assert "loss 0.5" in text
    assert "[bold] is text" in text
    assert "3/3" in text
    before = stream.tell()
    display.update(3, {"success": 1.0})  # the bar is gone; what comes now is a line
    assert stream.getvalue()[before:].startswith("training 3/3")
