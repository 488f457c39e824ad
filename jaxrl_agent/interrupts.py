"""Ctrl-C and SIGTERM as a request that the training loop answers between two updates."""

from __future__ import annotations

import signal
import threading
from types import FrameType

import jax
from jax.experimental import multihost_utils

from jaxrl_agent.errors import JaxrlError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(JaxrlError):
    """The run was asked to stop and left a state to go on from.

    Attributes:
        exit_code: 128 plus the signal's number, as shells have it.
    """

    def __init__(self, number: int, where: str):
        super().__init__(
            f"stopped by {signal.Signals(number).name} after {where}; everything up to there is saved",
            remedy="Give the same command again to go on (train.py: with --resume).",
        )
        self.exit_code = 128 + number


class Interrupts:
    """Notes signals while the `with` block runs; a second Ctrl-C ends the program at once.

    With one process it handles SIGINT and SIGTERM itself. With several, JAX's preemption service does, so that all
    processes agree on the update after which they stop. Outside the main thread, where Python allows no handlers, it
    notes nothing.
    """

    def __init__(self) -> None:
        self._noted: int | None = None
        self._previous: dict[int, object] = {}
        self._several = jax.process_count() > 1

    def __enter__(self) -> Interrupts:
        if not self._several and threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def noted(self, update: int) -> int | None:
        """Number of the signal that asks to stop after this update, or None. All processes get the same answer."""
        if self._several and multihost_utils.reached_preemption_sync_point(update):
            return signal.SIGTERM
        return self._noted

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = number
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
