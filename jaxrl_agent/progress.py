"""The live view of a run: a bar on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from jaxrl_agent.errors import ArgumentError

MODES = ("auto", "live", "plain", "quiet")
_SECONDS_BETWEEN_LINES = 15.0


class Display:
    """Shows one phase after another: how far, how good, how fast, and the time left.

    Live, it is a bar that is drawn anew; plain, a line at most every 15 seconds and one at the end of a phase, without
    control codes. When the `with` block ends, by an error or Ctrl-C too, the terminal is left as it was found.

    Args:
        stream: where to write; stdout by default.
        mode: "live", "plain", "quiet", or "auto": live on a terminal, else plain. What is no terminal, or one that
            knows no control codes (TERM=dumb), gets plain lines even where "live" was asked for.
        quiet: write nothing, whatever the mode: for all processes of a pod but one.

    Raises:
        ArgumentError: an unknown mode.
    """

    def __init__(self, stream: TextIO | None = None, *, mode: str = "auto", quiet: bool = False):
        if mode not in MODES:
            raise ArgumentError(f"mode must be one of {', '.join(MODES)}", value=mode)
        self._stream = sys.stdout if stream is None else stream
        self._quiet = quiet or mode == "quiet"
        self._live = not self._quiet and mode != "plain" and _can_redraw(self._stream)
        self._bar: Progress | None = None
        self._phase, self._total, self._done, self._began, self._spoke = "", 0, 0, 0.0, 0.0

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_bar()

    def say(self, text: str) -> None:
        """Write one line."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        elif not self._quiet:
            print(text, file=self._stream, flush=True)

    def start(self, phase: str, total: int, done: int = 0) -> None:
        """Begin a phase of `total` updates, `done` of which were done before."""
        self._stop_bar()
        self._phase, self._total, self._done = phase, total, done
        self._first_done, self._began = done, time.monotonic()
        self._spoke = self._began - _SECONDS_BETWEEN_LINES
        if self._live and total > 0:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[values]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=Console(file=self._stream),
            )
            self._task = self._bar.add_task(phase, total=total, completed=done, values="")
            self._bar.start()

    def update(self, done: int, values: Mapping[str, float | str]) -> None:
        """Show that `done` updates are done, with the latest values."""
        self._done = done
        text = "  ".join(f"{name} {_short(value)}" for name, value in values.items())
        if self._bar is not None:
            self._bar.update(self._task, completed=done, values=text)
            return
        now = time.monotonic()
        if now - self._spoke >= _SECONDS_BETWEEN_LINES or done == self._total:
            self._spoke = now
            self.say(f"{self._phase} {done}/{self._total}  {text}  left {self._time_left(now)}")

    def _time_left(self, now: float) -> str:
        fresh = self._done - self._first_done
        if fresh <= 0:
            return "?"
        seconds = round((now - self._began) / fresh * (self._total - self._done))
        return f"{seconds // 60}:{seconds % 60:02d}"

    def _stop_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _can_redraw(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")


def _short(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
