"""What tests of shell episodes look at from outside."""

from __future__ import annotations

import os
import time
from collections.abc import Callable


def processes_of(pid: int) -> list[int]:
    """Number the processes of the namespace whose process 1 has this number outside; none if it is gone."""
    try:
        wanted = os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return []
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            found += [int(entry)] if os.readlink(f"/proc/{entry}/ns/pid") == wanted else []
        except OSError:
            continue
    return found


def wait_until(true: Callable[[], bool], seconds: float = 3.0) -> None:
    """Wait for a condition.

    Raises:
        AssertionError: it does not come true in time.
    """
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it must come true in time"
        time.sleep(0.02)
