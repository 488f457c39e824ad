"""Environments at work beside the accelerator: threads, a time limit for each job, failures as values.

A job that outlives its limit is given up: its caller hears of it at once, its thread is left behind and replaced, and
whatever it may still return is thrown away. So one environment that hangs costs its own trajectory and nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from jaxrl_agent.errors import SandboxError
from jaxrl_agent.types import StopReason

_LONGEST_MESSAGE = 300


@dataclasses.dataclass(frozen=True)
class Failure:
    """A job that gave no answer."""

    stop: StopReason  # environment_error, time_limit or could_not_check
    message: str


@dataclasses.dataclass
class _Job:
    number: int
    call: Callable[[], Any]
    began: float | None = None
    settled: bool = False  # answered, or given up


class EnvironmentPool:
    """Run jobs in threads that die with the process.

    Args:
        workers: jobs at one time; 0 for one less than there are cores, as sandboxes run: more would wait for one
            another, and their time would count.
        limit_s: longest time that a job may run, in seconds, from the moment that a thread takes it up.
    """

    def __init__(self, workers: int, limit_s: float):
        self._limit_s = limit_s
        self._waiting: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, Any, float]] = queue.SimpleQueue()
        self._open: dict[int, _Job] = {}
        self._forgotten: list[_Job] = []  # jobs whose answers nobody asks for
        self._lock = threading.Lock()
        self._workers = workers or max(1, _cores() - 1)
        for _ in range(self._workers):
            self._start_thread()

    def __enter__(self) -> EnvironmentPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let idle threads end; a busy one ends with its job."""
        for _ in range(self._workers):
            self._waiting.put(None)

    @property
    def busy(self) -> int:
        """Jobs that were given and have not been answered."""
        return len(self._open)

    def submit(self, number: int, call: Callable[[], Any]) -> None:
        """Have a job run; `number` names it in the answers and must not name another open one."""
        job = _Job(number, call)
        self._open[number] = job
        self._waiting.put(job)

    def forget(self, call: Callable[[], Any]) -> None:
        """Have something run whose result and failure nobody asks for."""
        job = _Job(-1, call)
        self._forgotten.append(job)
        self._waiting.put(job)

    def results(self, *, wait_s: float = 0.0) -> list[tuple[int, Any, float]]:
        """Answers since the last call, in order of their numbers: (number, value or `Failure`, seconds).

        Args:
            wait_s: how long to wait for the first one, in seconds; 0 looks only.
        """
        found = self._drain()
        until = time.monotonic() + wait_s
        while not found and self._open and (left := until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                found = [self._done.get(timeout=min(left, self._next_deadline()))]
            found += self._drain()
        answers = [answer for answer in found if self._open.pop(answer[0], None) is not None]
        return sorted(answers, key=lambda answer: answer[0])

    def _drain(self) -> list[tuple[int, Any, float]]:
        found = []
        while True:
            try:
                found.append(self._done.get_nowait())
            except queue.Empty:
                return found + self._overdue()

    def _overdue(self) -> list[tuple[int, Any, float]]:
        """Give up the jobs that ran for too long, and put fresh threads in place of theirs."""
        now, late = time.monotonic(), []
        self._forgotten = [job for job in self._forgotten if not job.settled]
        for job in [*self._open.values(), *self._forgotten]:
            with self._lock:
                if job.began is None or job.settled or now - job.began < self._limit_s:
                    continue
                job.settled = True
            self._start_thread()
            if job.number < 0:
                continue
            message = f"the environment took longer than {self._limit_s:g} s (config.rollout.environment_seconds)"
            late.append((job.number, Failure(StopReason.TIME_LIMIT, message), now - job.began))
        return late

    def _next_deadline(self) -> float:
        begun = [job.began for job in list(self._open.values()) if job.began is not None]
        return max(0.001, min(begun, default=time.monotonic()) + self._limit_s - time.monotonic())

    def _start_thread(self) -> None:
        threading.Thread(target=self._work, name="environment", daemon=True).start()

    def _work(self) -> None:
        while (job := self._waiting.get()) is not None:
            job.began = time.monotonic()
            value = _outcome(job.call)
            with self._lock:
                if job.settled:
                    return  # another thread has taken this one's place
                job.settled = True  # from here on it is too late to be late
            if job.number >= 0:
                self._done.put((job.number, value, time.monotonic() - job.began))


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except SandboxError as error:
        return Failure(StopReason.COULD_NOT_CHECK, _message(error))
    except BaseException as error:  # whatever the environment's code raises, sys.exit() included
        return Failure(StopReason.ENVIRONMENT_ERROR, _message(error))


def _message(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_LONGEST_MESSAGE]
