"""Shell episodes: one sandbox that a model may change as it likes, command by command.

The root is a throw-away layer over a read-only base; everything written lies on one file system of a fixed size. What
an episode leaves is collected as bytes and graded elsewhere (`shell_verify.verify`): nothing is ever judged where the
commands of a model have run.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pathlib
import posixpath
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_agent.errors import ArgumentError, SandboxError
from jaxrl_agent.sandbox import access, bubblewrap, leftovers, wire
from jaxrl_agent.sandbox.results import MIB, Limits, Result, Status

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ANSWER_SECONDS = 60.0
_MOST_FILES, _MOST_BYTES = 2000, 256 * MIB
# The package's own `__init__` imports much that a keeper does not need, so an empty one stands in for it.
_MAIN = """
import sys, types
root, package = sys.argv[2:]
sys.path.insert(0, root)
sys.modules["jaxrl_agent.sandbox"] = module = types.ModuleType("jaxrl_agent.sandbox")
module.__path__ = [package]
from jaxrl_agent.sandbox.shell_host import main
main()
"""
_PACKAGE = pathlib.Path(__file__).parent

# Contents, contents with a mode, or the path of a file or folder outside.
Source = bytes | tuple[bytes, int] | str | os.PathLike


class Collected(dict[str, bytes]):
    """Files of an episode: absolute path -> bytes.

    Attributes:
        modes: path -> permission bits.
        refused: path -> why it was not taken (a link, too large, missing, ...).
    """

    def __init__(self):
        super().__init__()
        self.modes: dict[str, int] = {}
        self.refused: dict[str, str] = {}


class Shell:
    """An open episode; made by `open_shell`, a context manager. Every method may be called from every thread.

    Attributes:
        limits: of commands that bring none.
        workdir: where the first command starts.
        info: pid of process 1 outside, whether /proc is there, what memory is limited by.
    """

    def __init__(self, link: _Link, limits: Limits, workdir: str):
        self._link, self.limits, self.workdir = link, limits, workdir
        self.info = link.ready

    def run(self, command: str, *, limits: Limits | None = None) -> Result:
        """Run a command in a new `bash -c` and wait for its end; then kill whatever it left, services excepted.

        Folder and exported variables carry over to the next command. Standard input is empty, there is no terminal.

        Args:
            command: any text that bash takes.
            limits: of this command; `disk_mb` is the episode's.

        Returns:
            How it ended; a command that breaks a limit is killed, the episode goes on.

        Raises:
            ArgumentError: a command that can not be passed on.
            SandboxError: the episode is closed, or its sandbox was lost.
        """
        return self._run({"command": _command(command)}, limits)[0]

    def start_service(self, command: str, name: str) -> None:
        """Start a command that runs beside the following ones; its output goes to `/var/log/services/NAME.log`.

        Raises:
            SandboxError: one of this name runs already.
        """
        if not name or not set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-"):
            raise ArgumentError("a service's name has small letters, digits, - and _", value=name)
        self._link.ask("service", name=name, command=_command(command), log=f"/var/log/services/{name}.log")

    def stop_service(self, name: str) -> None:
        """Kill a service with all that it started.

        Raises:
            SandboxError: none of this name runs.
        """
        self._link.ask("stop", name=name)

    def services(self) -> list[str]:
        """Name the services that run."""
        return self._link.ask("services")["names"]

    def collect(
        self, paths: Sequence[str], *, file_bytes: int = 8 * MIB, total_bytes: int = 32 * MIB, files: int = 1000
    ) -> Collected:
        """Kill all processes of the episode, services included, then take files.

        Args:
            paths: files, or folders for all files below; relative ones start at `workdir`. No component may be a link.
            file_bytes, total_bytes, files: larger files, and what comes after so many, are refused.

        Returns:
            Bytes of regular files, with what was refused and why.
        """
        if isinstance(paths, str):
            raise ArgumentError("paths must be a list", value=paths)
        places = [_place(path, self.workdir) for path in paths]
        answer = self._link.ask("collect", paths=places, file_bytes=file_bytes, total_bytes=total_bytes, files=files)
        data, collected, at = base64.b64decode(answer["data"]), Collected(), 0
        for path, size, mode in answer["index"]["files"]:
            collected[path], collected.modes[path] = data[at : at + size], mode
            at += size
        collected.refused = dict(answer["index"]["refused"])
        return collected

    def close(self) -> None:
        """End the episode; nothing of it is left on return. May be called twice."""
        self._link.close()

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run_report(self, argv: Sequence[str], *, limits: Limits | None = None) -> tuple[Result, str]:
        """Run a trusted program by its words in the first environment; also give what it wrote to descriptor 3."""
        return self._run({"argv": list(argv), "report": True}, limits)

    def _run(self, request: dict[str, Any], limits: Limits | None) -> tuple[Result, str]:
        limits = limits or self.limits
        try:
            answer = self._link.ask("run", seconds=limits.wall_limit_s, **request, limits=limits.to_json())
        except _OutOfMemory:
            reason = "the episode has used up its memory and is over"
            return Result(Status.MEMORY_LIMIT, reason=reason), ""
        return Result.from_json(answer["result"]), answer["report"] or ""


def open_shell(
    root: str | os.PathLike | None = None,
    *,
    files: Mapping[str, Source] | None = None,
    limits: Limits | None = None,
    network: bool = False,
    workdir: str = "/app",
    home: str = "/home/user",
    env: Mapping[str, str] | None = None,
    lifetime_s: float = 3600.0,
    proc: bool = True,
    binds: Sequence[tuple[str, str]] = (),
) -> Shell:
    """Open a shell episode in a sandbox of its own.

    Args:
        root: folder of a prepared root file system (with bash and /usr/bin/python3); by default the host's /usr and
            those settings of /etc that name nothing of the host. It is never changed.
        files: path inside -> contents, (contents, mode), or a path outside; relative paths start at `workdir`.
        limits: `disk_mb` for all that is written; the others for each command that brings none.
        network: whether sockets may be opened; behind them is a loopback device of the episode's own, nothing else.
        workdir, home: folders that the episode starts with.
        env: more variables for the first command.
        lifetime_s: seconds after which the episode is ended, whatever it does.
        proc: whether to show /proc where it can be mounted.
        binds: (path outside, path inside) of more that is shown read-only.

    Returns:
        The episode, ready for commands.

    Raises:
        ArgumentError: a path or variable that can not be used.
        SandboxError: no isolation by namespaces (tier ns) on this host, or the sandbox did not come up.
    """
    limits = limits or Limits()
    workdir, home = _place(workdir, "/"), _place(home, "/")
    variables = {"PATH": _PATH, "HOME": home, "USER": "user", "LOGNAME": "user", "SHELL": "/bin/bash"}
    variables |= {"LANG": "C.UTF-8", "TERM": "dumb", **(env or {})}
    for name, value in variables.items():
        if not name.isidentifier() or "\0" in value:
            raise ArgumentError("a variable must have a name of letters and a text without NUL", value=name)
    given = _given(files or {}, workdir)
    base = None if root is None else _checked_root(root)
    plan = {"base": base, "disk_mb": limits.disk_mb, "workdir": workdir, "home": home}
    plan |= {"sockets": network, "proc": proc, "binds": [list(pair) for pair in binds]}
    shell = Shell(_Link(plan, limits, lifetime_s), limits, workdir)
    try:
        shell._link.ask("begin", env=variables, files=given)
    except BaseException:
        shell.close()
        raise
    return shell


class _OutOfMemory(SandboxError):
    """The kernel has ended the episode for its memory limit."""


class _Link:
    """The connection to the process that keeps the episode."""

    def __init__(self, plan: dict[str, Any], limits: Limits, lifetime_s: float):
        client = access.connect()
        if client.tier != "ns":
            remedy = "Install bubblewrap and allow user namespaces, or run the supervisor in a VM that has both."
            raise SandboxError("shell episodes must run under tier ns", value=client.tier, remedy=remedy)
        bwrap = client.request("info").result()["info"]["bwrap"]
        self._lock, self._decoder, self._closed, self._waits = threading.Lock(), wire.Decoder(), False, False
        self._folder = leftovers.make_folder()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        options = {"fd": theirs.fileno(), "parent": os.getpid(), "run_folder": self._folder, "bwrap": bwrap}
        options |= {"cgroups": client.settings.cgroups, "plan": plan, "limits": limits.to_json()}
        options |= {"lifetime_s": lifetime_s}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _MAIN, json.dumps(options), str(_PACKAGE.parents[1]), str(_PACKAGE)],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=bubblewrap.environment() | {"HOME": "/"},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            self._socket.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise SandboxError("the keeper of a shell must start", value=str(error)) from error
        finally:
            theirs.close()
        try:
            self.ready = _checked(self._receive(_ANSWER_SECONDS))
        except SandboxError:
            self.close()
            raise

    def ask(self, op: str, *, seconds: float = 0.0, **fields: Any) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        with self._lock:
            if self._closed:
                raise SandboxError("the shell must be open", value="it was closed", remedy="Open another one.")
            if self._waits:
                found = "no answer to the request before"
                raise SandboxError("the keeper of a shell must answer", value=found, remedy="Open another one.")
            # Whoever is interrupted here leaves an answer behind that must not be taken for the next request's.
            self._waits = True
            try:
                self._socket.settimeout(_ANSWER_SECONDS)
                self._socket.sendall(wire.encode({"op": op, **fields}))
            except OSError as error:
                raise SandboxError("the keeper of a shell must stay alive", value="it ended") from error
            answer = self._receive(seconds + _ANSWER_SECONDS)
            self._waits = False
            return _checked(answer)

    def _receive(self, seconds: float) -> dict[str, Any]:
        self._socket.settimeout(seconds)
        messages: list[dict[str, Any]] = []
        while not messages:
            try:
                data = self._socket.recv(1 << 20)
            except OSError as error:
                raise SandboxError("the keeper of a shell must answer", value=str(error)) from error
            if not data:
                raise SandboxError("the keeper of a shell must stay alive", value="it ended")
            messages = self._decoder.feed(data)
        return messages[0]

    def close(self) -> None:
        """Hang up, and wait until the keeper has ended the episode."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(OSError):
                # A process forked from this one may hold the socket too.
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            try:
                self._process.wait(10.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            shutil.rmtree(self._folder, ignore_errors=True)


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    """Give a keeper's answer, or raise the error that it is."""
    if "error" in answer:
        error = answer["error"]
        kind = _OutOfMemory if answer.get("memory") else SandboxError
        found = {} if error["value"] is None else {"value": error["value"]}
        raise kind(error["rule"].rstrip("."), **found, remedy=error["remedy"])
    return answer


def _command(command: str) -> str:
    if not isinstance(command, str) or "\0" in command:
        raise ArgumentError("a command must be text without NUL", value=type(command).__name__)
    if len(command) > MIB:
        raise ArgumentError("a command must have at most a million characters", value=len(command))
    return command.encode("utf-8", "replace").decode()


def _place(path: str, start: str) -> str:
    """Give the absolute path inside; nothing in it may lead elsewhere."""
    joined = posixpath.join(start, path)
    if not path or "\0" in path or ".." in joined.split("/") or joined.strip("/") == "":
        raise ArgumentError("a path in a shell must name a file or folder without '..'", value=path)
    return "/" + posixpath.normpath(joined).lstrip("/")


def _checked_root(root: str | os.PathLike) -> str:
    path = os.path.realpath(root)
    for name in ("bin/bash", "usr/bin/python3"):
        if not os.path.lexists(os.path.join(path, name)):
            raise ArgumentError(f"a prepared root must have /{name}", value=str(root))
    if os.geteuid() == 0 and not bubblewrap.readable_by_others(path):
        raise ArgumentError("a prepared root must be readable by every user, and so its folders above", value=str(root))
    return path


def _given(files: Mapping[str, Source], workdir: str) -> list[dict[str, Any]]:
    """Read what goes in: path, size, mode and bytes of each file."""
    entries: list[tuple[str, bytes, int]] = []
    for name, source in files.items():
        entries += read_source(_place(name, workdir), source)
    if len(entries) > _MOST_FILES or sum(len(data) for _, data, _ in entries) > _MOST_BYTES:
        raise ArgumentError(f"at most {_MOST_FILES} files of {_MOST_BYTES} bytes go into a shell", value=len(entries))
    encoded = [(path, len(data), mode, base64.b64encode(data).decode()) for path, data, mode in entries]
    return [dict(zip(("path", "size", "mode", "bytes"), entry, strict=True)) for entry in encoded]


def read_source(place: str, source: Source) -> list[tuple[str, bytes, int]]:
    """Read one entry of `files`: (path inside, contents, mode) of each file of it."""
    if isinstance(source, bytes):
        return [(place, source, 0o644)]
    if isinstance(source, tuple):
        data, mode = source
        return [(place, bytes(data), int(mode) & 0o777)]
    path = pathlib.Path(source)
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.is_file() and not file.is_symlink())
        return [(f"{place}/{file.relative_to(path).as_posix()}", *_contents(file)) for file in found]
    if not path.is_file():
        raise ArgumentError("a file for a shell must exist", value=str(path))
    return [(place, *_contents(path))]


def _contents(path: pathlib.Path) -> tuple[bytes, int]:
    return path.read_bytes(), path.stat().st_mode & 0o777
