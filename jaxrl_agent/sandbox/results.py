"""What a sandbox is allowed to use, and what came of a run: statuses, limits, results, verdicts.

An outcome has three values: it passed, it failed (each other status), or it could not be checked. The last one is never
a status of a program: it is `SandboxError`, or `Verdict.could_not_check` where an answer is needed all the same.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any

from jaxrl_agent.errors import ArgumentError

MIB = 1 << 20


class Status(enum.StrEnum):
    """How a run ended. Where several apply, the one nearest to the top of `PRECEDENCE` is reported."""

    OK = "ok"
    WRONG = "wrong"
    RUNTIME_ERROR = "runtime_error"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    SECURITY_VIOLATION = "security_violation"


PRECEDENCE = (
    Status.SECURITY_VIOLATION,
    Status.OUTPUT_LIMIT,
    Status.MEMORY_LIMIT,
    Status.TIME_LIMIT,
    Status.RUNTIME_ERROR,
    Status.WRONG,
    Status.OK,
)


@dataclasses.dataclass(frozen=True)
class Limits:
    """Upper bounds of one run, held by all of its processes together unless said otherwise.

    Attributes:
        wall_s: seconds on the clock; None means `3 * cpu_s + 1`, so that CPU time decides even on a busy host.
        cpu_s: seconds of CPU time.
        memory_mb: MiB of memory, files of the temporary file system included where cgroups can be used.
        output_bytes: bytes on standard output, and as many again on standard error.
        disk_mb: MiB of the temporary file system; fixed when a sandbox is made.
        processes: processes and threads alive at the same time.
        open_files: file descriptors of each process.
    """

    wall_s: float | None = None
    cpu_s: float = 2.0
    memory_mb: int = 512
    output_bytes: int = MIB
    disk_mb: int = 64
    processes: int = 64
    open_files: int = 64

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "wall_s" and value is None:
                continue
            number = isinstance(value, int) or (field.name in ("wall_s", "cpu_s") and isinstance(value, float))
            if isinstance(value, bool) or not number or not math.isfinite(value) or value <= 0:
                raise ArgumentError(f"limit {field.name} must be a positive number", value=value)
        if self.memory_mb < 16:
            raise ArgumentError("memory_mb must leave room for an interpreter, at least 16", value=self.memory_mb)
        if self.open_files < 8:
            raise ArgumentError("open_files must be at least 8", value=self.open_files)

    @property
    def wall_limit_s(self) -> float:
        """Seconds on the clock, with the default filled in."""
        return 3 * self.cpu_s + 1 if self.wall_s is None else self.wall_s

    def to_json(self) -> dict[str, Any]:
        """Give the limits as a JSON object, `wall_s` filled in."""
        return {**dataclasses.asdict(self), "wall_s": self.wall_limit_s}


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of one run.

    Attributes:
        status: `OK` says that the program ended by itself with exit code 0, not that its answer is right.
        stdout: at most `output_bytes` bytes of it, decoded as UTF-8 with replacement.
        stderr: the same of standard error.
        truncated: whether bytes of either were thrown away.
        exit_code: None where a signal or a limit ended the run.
        signal: number of the signal that ended it, else None.
        wall_s: seconds on the clock.
        cpu_s: seconds of CPU time of all its processes.
        peak_mem_bytes: largest memory of all its processes together that was seen.
        reason: one line for people: which limit, which signal, which refusal.
        tier: the isolation it ran under: "ns", "lsm" or "none".
    """

    status: Status
    stdout: str = ""
    stderr: str = ""
    truncated: bool = False
    exit_code: int | None = None
    signal: int | None = None
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_mem_bytes: int = 0
    reason: str = ""
    tier: str = "ns"

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Result:
        """Read what the supervisor wrote."""
        return cls(**{**value, "status": Status(value["status"])})


@dataclasses.dataclass(frozen=True)
class Reply:
    """The answer of a worker to one call: how it ran, and the JSON value it gave (None unless the status is ok)."""

    result: Result
    value: Any = None


@dataclasses.dataclass(frozen=True)
class CaseVerdict:
    """One test of a verdict."""

    status: Status
    reason: str = ""
    wall_s: float = 0.0
    cpu_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a judge found.

    Attributes:
        status: `OK` only if each test passed; else that of the first test that did not.
        passed: tests passed.
        total: tests there are, those not run included.
        results: one entry for each test that was run, in order.
        feedback: what a model may be told, at most 2 kB, without expected values.
        could_not_check: true where the judge has no answer; then the sample must be masked, not scored.
        tier: the isolation the tests ran under.
    """

    status: Status
    passed: int
    total: int
    results: tuple[CaseVerdict, ...] = ()
    feedback: str = ""
    could_not_check: bool = False
    tier: str = "ns"

    @property
    def ok(self) -> bool:
        """Whether every test was run and passed."""
        return self.status is Status.OK and not self.could_not_check and 0 < self.total == self.passed
