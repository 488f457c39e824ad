"""Meters of what all processes of a sandbox use together: a cgroup where one may be made, else a look at each process.

A cgroup's memory limit is enforced by the kernel. Without one the supervisor looks every 20 ms, and more often the
faster a group grows, and kills; a group then gets somewhat over its limit before it is seen, on a busy host by up to a
quarter.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PREFIX = "jaxrl-sandbox"


@dataclasses.dataclass(frozen=True)
class Usage:
    """A look at a group: CPU seconds so far, bytes of memory and processes now."""

    cpu_s: float
    memory_bytes: int
    processes: int


class ProcessMeter:
    """Adds up the processes below process 1 of a sandbox; no privilege needed, no limit enforced by the kernel."""

    enforced = False
    joins: tuple[str, ...] = ()

    def __init__(self):
        self._root = self._peak = self._limit = 0

    def watch(self, pid: int) -> None:
        """Name process 1 of the sandbox by its number outside."""
        self._root = pid

    def limit(self, memory_bytes: int, processes: int) -> None:
        """Start a new peak, and learn how much matters; the kernel enforces nothing here."""
        self._peak, self._limit = 0, memory_bytes

    def usage(self) -> Usage:
        """Look at every process now.

        Resident sets are cheap to read, and their sum is a bound. What forks share counts once only in proportional
        sets, which cost a walk over all pages: they are read when the bound is over the limit, until they are, too.
        """
        cpu, bound, pids = 0.0, 0, []
        for pid in descendants(self._root):
            with contextlib.suppress(OSError, ValueError, IndexError):
                cpu += _cpu_seconds(pid)
                bound += resident_bytes(pid)
                pids.append(pid)
        memory = bound if bound <= self._limit else self._proportional(pids)
        self._peak = max(self._peak, memory)
        return Usage(cpu, memory, len(pids))

    def _proportional(self, pids: list[int]) -> int:
        total = 0
        for pid in pids:
            with contextlib.suppress(OSError, ValueError, IndexError):
                total += _proportional_bytes(pid)
            if self._limit and total > self._limit:
                break
        return total

    def cpu_s(self) -> float:
        """CPU seconds of the group so far."""
        total = 0.0
        for pid in descendants(self._root):
            with contextlib.suppress(OSError, ValueError, IndexError):
                total += _cpu_seconds(pid)
        return total

    def peak_bytes(self) -> int:
        """Largest memory that a look has seen."""
        return self._peak

    def out_of_memory(self) -> bool:
        """Whether the kernel has killed for the limit; never here."""
        return False

    def remove(self) -> None:
        """Forget the group."""


class CgroupMeter:
    """One cgroup of either version; `paths` maps memory, pids and cpu to the group's folders."""

    enforced = True

    def __init__(self, paths: dict[str, Path], version: int):
        self._paths, self._version = paths, version
        for path in set(paths.values()):
            path.mkdir(exist_ok=True)
        self.joins = tuple(str(path / "cgroup.procs") for path in sorted(set(paths.values())))
        self._memory = paths["memory"]
        self._kills = 0

    def watch(self, pid: int) -> None:
        """Nothing to do: the process has joined by itself before it was anything else."""

    def limit(self, memory_bytes: int, processes: int) -> None:
        """Set the limits that the kernel enforces, and start a new peak."""
        names = ("memory.max",) if self._version == 2 else ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        # Version 1 wants the limit below that with swap at every moment, so the order depends on the direction.
        for name in (*names, *reversed(names)):
            _try_write(self._memory / name, memory_bytes)
        _try_write(self._memory / "memory.swap.max", 0)
        _try_write(self._memory / "memory.oom.group", 0)
        _try_write(self._memory / ("memory.peak" if self._version == 2 else "memory.max_usage_in_bytes"), 0)
        if "pids" in self._paths:
            _try_write(self._paths["pids"] / "pids.max", processes + 4)
        self._kills = self._count_kills()

    def memory_limit(self) -> int:
        """Read back the limit of memory, bytes."""
        return int(_read(self._memory / ("memory.max" if self._version == 2 else "memory.limit_in_bytes")))

    def usage(self) -> Usage:
        """Read the group's counters."""
        name = "memory.current" if self._version == 2 else "memory.usage_in_bytes"
        processes = _read(self._memory / "cgroup.procs").count("\n")
        return Usage(self.cpu_s(), int(_read(self._memory / name) or 0), processes)

    def cpu_s(self) -> float:
        """CPU seconds of the group so far."""
        if self._version == 2:
            fields = dict(line.split() for line in _read(self._memory / "cpu.stat").splitlines())
            return int(fields.get("usage_usec", 0)) / 1e6
        return int(_read(self._paths["cpu"] / "cpuacct.usage") or 0) / 1e9

    def peak_bytes(self) -> int:
        """Largest memory of the group, as the kernel has noted it."""
        name = "memory.peak" if self._version == 2 else "memory.max_usage_in_bytes"
        return int(_read(self._memory / name) or 0)

    def out_of_memory(self) -> bool:
        """Whether the kernel has killed a process for the limit since the limit was set."""
        return self._count_kills() > self._kills

    def remove(self) -> None:
        """Remove the group; processes must be gone."""
        for path in set(self._paths.values()):
            with contextlib.suppress(OSError):
                path.rmdir()

    def _count_kills(self) -> int:
        text = _read(self._memory / ("memory.events" if self._version == 2 else "memory.oom_control"))
        fields = dict(line.split() for line in text.splitlines() if len(line.split()) == 2)
        return int(fields.get("oom_kill", 0))


class Meters:
    """Makes a meter for each sandbox: a cgroup if the first attempt works, else a look at processes."""

    def __init__(self, *, cgroups: bool = True):
        self._count = 0
        self._version, self._bases = _find_bases() if cgroups else (0, {})
        if self._bases:
            self.tidy()
            try:
                trial = self.make()
                trial.limit(1 << 30, 64)
                held = trial.memory_limit() == 1 << 30
                trial.usage()
                trial.remove()
                if not held:
                    self._bases = {}
            except (OSError, ValueError, KeyError):
                self._bases = {}

    def tidy(self) -> None:
        """Remove groups of supervisors that are gone."""
        for base in set(self._bases.values()):
            for path in base.glob(f"{_PREFIX}-*-*"):
                owner = path.name.split("-")[2]
                if owner.isdigit() and (int(owner) == os.getpid() or not os.path.exists(f"/proc/{owner}")):
                    with contextlib.suppress(OSError):
                        path.rmdir()

    @property
    def enforced(self) -> bool:
        """Whether the kernel holds sandboxes to their limit of memory."""
        return bool(self._bases)

    @property
    def kind(self) -> str:
        """Name of what memory is measured and limited by."""
        return f"cgroup v{self._version}" if self._bases else "process poll"

    def make(self) -> CgroupMeter | ProcessMeter:
        """Make the meter of one sandbox."""
        if not self._bases:
            return ProcessMeter()
        self._count += 1
        name = f"{_PREFIX}-{os.getpid()}-{self._count}"
        return CgroupMeter({key: base / name for key, base in self._bases.items()}, self._version)


def descendants(root: int) -> list[int]:
    """List a process and all below it, by the kernel's lists of children."""
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children(pid)
    return found


def children(pid: int) -> list[int]:
    """List the children of a process, those of all its threads."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += map(int, _read_bytes(f"/proc/{pid}/task/{thread}/children").split())
    return found


def address_space_bytes(pid: int) -> int:
    """Give the size of a process's address space."""
    return int(_read_bytes(f"/proc/{pid}/statm").split()[0]) * _PAGE


def resident_bytes(pid: int) -> int:
    """Give the resident set size of a process."""
    return int(_read_bytes(f"/proc/{pid}/statm").split()[1]) * _PAGE


def _cpu_seconds(pid: int) -> float:
    # The name in parentheses may hold blanks; utime, stime and those of waited-for children follow it.
    fields = _read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return sum(map(int, fields[11:15])) / _TICK


def _proportional_bytes(pid: int) -> int:
    try:
        for line in _read_bytes(f"/proc/{pid}/smaps_rollup").splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    except PermissionError:
        resident, shared = map(int, _read_bytes(f"/proc/{pid}/statm").split()[1:3])
        return (resident - shared) * _PAGE
    return 0


def _find_bases() -> tuple[int, dict[str, Path]]:
    """Find the groups of this process, below which new ones may be made: (version, controller -> folder)."""
    own = {}
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        number, controllers, path = line.split(":", 2)
        own["" if number == "0" else controllers] = path
    mounts = _cgroup_mounts()
    bases: dict[str, Path] = {}
    for key, controller in (("memory", "memory"), ("pids", "pids"), ("cpu", "cpuacct")):
        for names, path in own.items():
            if controller in names.split(",") and controller in mounts:
                bases[key] = _below(*mounts[controller], path)
    if {"memory", "cpu"} <= set(bases):
        return 1, bases
    if "" in own and "" in mounts:
        # A group that holds processes may not hand controllers down, so a sibling is the usual place.
        base = _below(*mounts[""], own[""])
        for place in (base, base.parent) if base != Path(mounts[""][1]) else (base,):
            if {"memory", "pids"} <= set(_read(place / "cgroup.subtree_control").split()):
                return 2, {"memory": place, "pids": place}
    return 0, {}


def _cgroup_mounts() -> dict[str, tuple[str, str]]:
    """Map controllers ('' for version 2) to (root of the mount, mount point)."""
    mounts = {}
    for line in _read(Path("/proc/self/mountinfo")).splitlines():
        left, _, right = line.partition(" - ")
        root, point = left.split()[3:5]
        kind, _, options = right.split()[:3]
        if kind == "cgroup2":
            mounts[""] = (root, point)
        elif kind == "cgroup":
            mounts.update(dict.fromkeys(options.split(","), (root, point)))
    return mounts


def _below(root: str, point: str, path: str) -> Path:
    inside = path[len(root) :] if root != "/" and path.startswith(root) else path
    joined = Path(point) / inside.lstrip("/")
    return joined if joined.is_dir() else Path(point)


def _try_write(path: Path, value: int) -> None:
    with contextlib.suppress(OSError):
        path.write_text(str(value))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _read_bytes(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read(65536)
