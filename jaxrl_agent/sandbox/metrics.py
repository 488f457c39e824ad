"""Counters of a supervisor: how long, how it ended, what it holds."""

from __future__ import annotations

import collections
import os
import statistics
import time
from typing import Any

from jaxrl_agent.sandbox.memory import descendants, resident_bytes

_KEPT = 2000


class Metrics:
    """What has happened since the supervisor started; the supervisor adds, `report` sums up."""

    def __init__(self):
        self._started = time.monotonic()
        self._latencies: collections.deque[float] = collections.deque(maxlen=_KEPT)
        self._statuses: collections.Counter[str] = collections.Counter()
        self._canaries: collections.Counter[str] = collections.Counter()
        self.errors = 0

    def note(self, result: dict[str, Any], seconds: float) -> None:
        """Count a result, and the seconds between request and answer."""
        self._statuses[str(result["status"])] += 1
        self._latencies.append(seconds)

    def note_canary(self, result: dict[str, Any] | None, expected: str) -> None:
        """Count whether a program with a known answer gave it."""
        right = result is not None and result["status"] == "ok" and result["stdout"] == expected
        self._canaries["ok" if right else "failed"] += 1

    def report(self, pool, *, running: int, queued: int) -> dict[str, Any]:
        """Give all numbers: seconds, bytes and counts.

        `error_share` is that of runs that could not be checked; above 0.005 something is wrong with the host.
        """
        total = sum(self._statuses.values())
        spread = statistics.quantiles(self._latencies, n=20) if len(self._latencies) > 1 else [0.0] * 19
        boxes = list(pool.all.values())
        return {
            "uptime_s": time.monotonic() - self._started,
            "results": total,
            "errors": self.errors,
            "error_share": self.errors / max(1, self.errors + total),
            "status_share": {status: count / total for status, count in sorted(self._statuses.items())},
            "latency_s": {"p50": spread[9], "p95": spread[18], "max": max(self._latencies, default=0.0)},
            "warm_up_s": statistics.median(pool.warm_seconds) if pool.warm_seconds else 0.0,
            "running": running,
            "queued": queued,
            **pool.counts,
            "launched": pool.launched,
            "failed_starts": pool.failed,
            "processes": len(descendants(os.getpid())) - 1,
            "descriptors": len(os.listdir("/proc/self/fd")),
            "rss_bytes": resident_bytes(os.getpid()),
            "temporary_bytes": sum(box.writable_usage()[0] for box in boxes),
            "canaries": {"ok": self._canaries["ok"], "failed": self._canaries["failed"]},
        }
