"""Environments in threads: limits from the moment of taking up, hanging jobs that cost themselves alone, failures."""

from __future__ import annotations

import threading
import types
from collections.abc import Iterator

import pytest

from jaxrl_agent.errors import SandboxError
from jaxrl_agent.rollout import environment_pool
from jaxrl_agent.rollout.environment_pool import EnvironmentPool, Failure
from jaxrl_agent.types import StopReason

SOON = 30.0  # seconds within which everything happens that happens at all
LIMIT = 10.0


class Clock:
    """Time that passes when the test says so."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(environment_pool, "time", types.SimpleNamespace(monotonic=clock.monotonic))
    return clock


class Held:
    """A job that tells when it is taken up and ends when it is told to."""

    def __init__(self, value: object = "value"):
        self._value, self._begun, self._end = value, threading.Event(), threading.Event()
        self.thread: threading.Thread | None = None

    def __call__(self) -> object:
        self.thread = threading.current_thread()
        self._begun.set()
        assert self._end.wait(SOON)
        return self._value

    def wait_until_begun(self) -> None:
        assert self._begun.wait(SOON)

    @property
    def begun(self) -> bool:
        return self._begun.is_set()

    def end(self) -> None:
        self._end.set()

    def end_and_wait(self) -> None:
        """End it, and wait until its thread is gone: for jobs that were given up."""
        self.end()
        self.thread.join(SOON)
        assert not self.thread.is_alive()


@pytest.fixture
def held() -> Iterator[list[Held]]:
    """Jobs that are let go when the test ends, however it ends."""
    jobs = [Held(f"value {number}") for number in range(6)]
    yield jobs
    for job in jobs:
        job.end()


def pool_of(workers: int) -> EnvironmentPool:
    return EnvironmentPool(workers, LIMIT)


def wait_until_all_before_are_done(pool: EnvironmentPool) -> None:
    """For a pool of one worker, which takes jobs up one after the other."""
    reached = threading.Event()
    pool.forget(reached.set)
    assert reached.wait(SOON)


# ---- answers


def test_answers_come_in_order_of_their_numbers_whichever_ended_first():
    with pool_of(1) as pool:
        for number in (2, 0, 1):
            pool.submit(number, lambda number=number: f"of {number}")
        wait_until_all_before_are_done(pool)
        answers = pool.results()
        assert [(number, value) for number, value, _ in answers] == [(0, "of 0"), (1, "of 1"), (2, "of 2")]
        assert all(seconds >= 0 for *_, seconds in answers)
        assert pool.results() == []
        assert pool.busy == 0


def test_looking_waits_for_nobody_and_waiting_ends_with_the_first_answer(held):
    slow, quick = held[:2]
    with pool_of(2) as pool:
        pool.submit(0, slow)
        pool.submit(1, quick)
        slow.wait_until_begun()
        assert pool.results() == []
        assert pool.results(wait_s=0.01) == []
        assert pool.busy == 2
        quick.end()
        assert [(number, value) for number, value, _ in pool.results(wait_s=SOON)] == [(1, "value 1")]
        assert pool.busy == 1
        slow.end()
        assert [number for number, *_ in pool.results(wait_s=SOON)] == [0]


def test_nobody_waits_where_nothing_is_under_way(clock):
    with pool_of(1) as pool:
        assert pool.results(wait_s=SOON) == [], "with a clock that stands still a wait would have no end"


def test_so_many_jobs_run_at_one_time_as_there_are_workers(held):
    with pool_of(2) as pool:
        for number, job in enumerate(held[:3]):
            pool.submit(number, job)
        held[0].wait_until_begun()
        held[1].wait_until_begun()
        assert not held[2].begun
        held[1].end()
        held[2].wait_until_begun()


def test_by_default_a_core_is_left_to_the_rollout_itself(monkeypatch, held):
    monkeypatch.setattr(environment_pool.os, "sched_getaffinity", lambda _: set(range(4)), raising=False)
    with pool_of(0) as pool:
        for number, job in enumerate(held[:4]):
            pool.submit(number, job)
        for job in held[:3]:
            job.wait_until_begun()
        assert not held[3].begun


# ---- failures


@pytest.mark.parametrize(
    ("error", "stop"),
    [
        (RuntimeError("the disk is gone"), StopReason.ENVIRONMENT_ERROR),
        (KeyError("the disk is gone"), StopReason.ENVIRONMENT_ERROR),
        (SystemExit("the disk is gone"), StopReason.ENVIRONMENT_ERROR),
        (SandboxError("the disk is gone"), StopReason.COULD_NOT_CHECK),
    ],
)
def test_what_a_job_raises_is_a_value_and_its_thread_goes_on(error, stop):
    def fail():
        raise error

    with pool_of(1) as pool:
        pool.submit(3, fail)
        pool.submit(4, lambda: "still here")
        wait_until_all_before_are_done(pool)
        (failed, failure, _), (_, value, _) = pool.results()
    assert (failed, failure.stop, value) == (3, stop, "still here")
    assert failure.message.startswith(type(error).__name__)
    assert "the disk is gone" in failure.message


def test_a_message_without_end_is_cut():
    def fail():
        raise ValueError("x" * 10_000)

    with pool_of(1) as pool:
        pool.submit(0, fail)
        ((_, failure, _),) = pool.results(wait_s=SOON)
    assert len(failure.message) == 300


# ---- limits


def test_a_limit_counts_from_when_a_thread_takes_the_job_up(clock, held):
    first, second = held[:2]
    with pool_of(1) as pool:
        pool.submit(0, first)
        pool.submit(1, second)
        first.wait_until_begun()
        clock.now += LIMIT - 1
        assert pool.results() == []
        first.end()
        second.wait_until_begun()
        assert [(number, value) for number, value, _ in pool.results()] == [(0, "value 0")]
        clock.now += LIMIT - 1  # nearly twice the limit since it was given
        assert pool.results() == []
        clock.now += 1
        ((number, failure, seconds),) = pool.results()
    assert (number, failure.stop, seconds) == (1, StopReason.TIME_LIMIT, LIMIT)
    assert "10 s (config.rollout.environment_seconds)" in failure.message


def test_hanging_jobs_never_starve_the_others(clock, held):
    with pool_of(1) as pool:
        for number, job in enumerate(held):
            pool.submit(number, job)
        pool.submit(99, lambda: "my turn at last")
        for number, job in enumerate(held):
            job.wait_until_begun()
            clock.now += LIMIT
            ((given_up, failure, _),) = pool.results()
            assert (given_up, failure.stop) == (number, StopReason.TIME_LIMIT)
        assert [(number, value) for number, value, _ in pool.results(wait_s=SOON)] == [(99, "my turn at last")]


def test_what_a_job_returns_too_late_is_thrown_away_and_its_number_is_free(clock, held):
    hanging, again = held[:2]
    with pool_of(1) as pool:
        pool.submit(7, hanging)
        hanging.wait_until_begun()
        clock.now += LIMIT
        assert isinstance(pool.results()[0][1], Failure)
        assert pool.busy == 0
        pool.submit(7, again)
        again.wait_until_begun()
        hanging.end_and_wait()
        assert pool.results() == []
        again.end()
        assert [value for _, value, _ in pool.results(wait_s=SOON)] == ["value 1"]


def test_a_limit_ends_a_wait():
    hanging = Held()
    with EnvironmentPool(1, 0.01) as pool:
        pool.submit(0, hanging)
        ((number, failure, _),) = pool.results(wait_s=SOON)
        hanging.end()
    assert (number, failure.stop) == (0, StopReason.TIME_LIMIT)


# ---- what nobody asks for


def test_nobody_hears_of_what_is_forgotten():
    with pool_of(1) as pool:
        pool.forget(lambda: "value")
        pool.forget(lambda: 1 / 0)
        wait_until_all_before_are_done(pool)
        assert pool.results(wait_s=SOON) == []
        assert pool.busy == 0
        pool.submit(0, lambda: "asked for")
        assert [value for _, value, _ in pool.results(wait_s=SOON)] == ["asked for"]


def test_what_is_forgotten_and_hangs_starves_nobody(clock, held):
    closing, late = held[:2]
    with pool_of(1) as pool:
        pool.forget(closing)
        pool.submit(0, late)
        closing.wait_until_begun()
        clock.now += LIMIT
        assert pool.results() == []
        late.wait_until_begun()
        closing.end_and_wait()
        late.end()
        assert [value for _, value, _ in pool.results(wait_s=SOON)] == ["value 1"]


def test_threads_end_with_the_pool_but_for_busy_ones_which_end_with_their_jobs(held):
    pool = pool_of(2)
    for number in range(2):
        pool.submit(number, held[number])
        held[number].wait_until_begun()
    pool.close()
    assert all(job.thread.is_alive() and job.thread.daemon for job in held[:2])
    for job in held[:2]:
        job.end_and_wait()
