"""Find and remove what callers and supervisors that were killed have left: processes and folders."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import signal
import tempfile
import time

_MARK = "jaxrl-sandbox"
_FOLDER = "jaxrl_sandbox"
_OWNED = re.compile(rf"(?:{_MARK}|{_FOLDER})-([0-9]{{1,9}})-([0-9]*)(?:-|\Z)")
_PAUSE_SECONDS = 0.02


def start_time(pid: int) -> str:
    """Give when a process started, in the kernel's ticks, so that a reused number is not mistaken; "" if it is gone."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def mark(owner: int) -> str:
    """Give the name that a supervisor's processes bear as their first argument."""
    return f"{_MARK}-{owner}-{start_time(owner)}"


def make_folder() -> str:
    """Make this process's run folder, which everybody may enter; those of processes that are gone are removed."""
    for path in pathlib.Path(tempfile.gettempdir()).glob(f"{_FOLDER}-*-*-*"):
        if not _lives(path.name):
            shutil.rmtree(path, ignore_errors=True)
    own = os.getpid()
    folder = tempfile.mkdtemp(prefix=f"{_FOLDER}-{own}-{start_time(own)}-")
    os.chmod(folder, 0o755)
    return folder


def kill_orphans(*, looks: int = 1) -> None:
    """Kill marked processes whose supervisor is gone; look again while others may still be losing theirs."""
    for _ in range(looks):
        orphans = [pid for pid, name in _marked() if not _lives(name)]
        for pid in orphans:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_SECONDS if looks > 1 else 0.0)


def _marked() -> list[tuple[int, str]]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/cmdline", "rb") as file:
                name = file.read(100).split(b"\0")[0].decode(errors="replace")
                if name.startswith(f"{_MARK}-"):
                    found.append((int(entry), name))
    return found


def _lives(name: str) -> bool:
    """Whether the process in `...-PID-START` or `...-PID-START-...` still runs."""
    match = _OWNED.match(name)
    # Any program may bear a name like these; what names no owner is nobody's leftover.
    return match is None or (match[2] != "" and start_time(int(match[1])) == match[2])
