"""The live view: lines now and then in a pipe, a bar on a terminal, silence where asked."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys

import pytest

from jaxrl_agent import progress
from jaxrl_agent.errors import ArgumentError
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


def show(stream, **options) -> str:
    with Display(stream, **options) as display:
        display.start("training", 2)
        display.update(1, {"success": 0.5})
        display.update(2, {"success": 0.5})
        display.say("done")
    return stream.getvalue()


@pytest.mark.parametrize("mode", ["auto", "live", "plain"])
def test_no_mode_sends_control_codes_into_a_pipe(mode, clock, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = show(io.StringIO(), mode=mode)
    assert text == "training 1/2  success 0.5  left 0:00\ntraining 2/2  success 0.5  left 0:00\ndone\n"


@pytest.mark.parametrize(
    ("mode", "term", "draws"),
    [("auto", "xterm", True), ("live", "xterm", True), ("plain", "xterm", False), ("live", "dumb", False)],
)
def test_a_terminal_gets_a_bar_unless_plain_lines_are_asked_for_or_all_it_can_show(mode, term, draws, monkeypatch):
    monkeypatch.setenv("TERM", term)
    assert ("\x1b[" in show(Terminal(), mode=mode)) == draws


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_quiet_mode_is_silent_everywhere(stream):
    assert show(stream, mode="quiet") == ""


def test_a_process_that_must_not_speak_is_silent_in_every_mode():
    assert show(Terminal(), mode="live", quiet=True) == ""


def test_an_unknown_mode_is_refused():
    with pytest.raises(ArgumentError, match=r"auto, live, plain, quiet; got 'loud'"):
        Display(mode="loud")


def test_plain_lines_are_at_least_15_seconds_apart_but_for_the_last_of_a_phase(clock):
    stream, times = io.StringIO(), []
    with Display(stream, mode="plain") as display:
        for _ in range(2):
            display.start("training", 100)
            for done in range(1, 101):
                clock.now += 1
                before = stream.tell()
                display.update(done, {})
                times += [done] if stream.tell() > before else []
    assert times == [1, 16, 31, 46, 61, 76, 91, 100] * 2


def test_a_phase_without_updates_shows_no_bar(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with Display(stream) as display:
        display.start("training", 0)
    assert stream.getvalue() == ""


INTERRUPTED = """
import signal, time
from jaxrl_agent.progress import Display
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests without one
with Display(mode="live") as display:
    display.start("training", 3000)
    for done in range(3000):
        display.update(done, {"success": 0.5})
        time.sleep(0.01)
"""


def test_ctrl_c_gives_the_terminal_its_cursor_and_a_fresh_line_back():
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", INTERRUPTED]
    process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    text, sent = b"", False
    while part := read(ours):
        text += part
        if not sent and text.count(b"success 0.5") >= 2:
            process.send_signal(signal.SIGINT)
            sent = True
    os.close(ours)
    assert process.wait(timeout=60) == -signal.SIGINT
    hidden, shown = b"\x1b[?25l", b"\x1b[?25h"
    assert text.rfind(shown) > text.rfind(hidden) >= 0
    assert text.endswith(b"\n" + shown)


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # how Linux says that nobody holds the other end any more
        return b""
