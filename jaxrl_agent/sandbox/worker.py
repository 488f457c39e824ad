"""Workers: a sandbox for one candidate or one episode, asked as often as needed, then thrown away."""

from __future__ import annotations

import base64
import contextlib
import os
import pathlib
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Self

from jaxrl_agent.errors import ArgumentError, SandboxError
from jaxrl_agent.sandbox import access
from jaxrl_agent.sandbox.results import Limits, Reply, Result

_INSIDE = pathlib.Path(__file__).parent / "inside"
_NOT_KINDS = {"runner", "bootstrap", "code_child", "handler_child", "landlock", "__init__"}
_MOST_FILES = 200

Files = Mapping[str, bytes | str | os.PathLike]
# kind, setup, files, limits -> a worker with `call(request, limits=...) -> Reply`
OpenWorker = Callable[..., AbstractContextManager[Any]]


class Worker:
    """An open sandbox; made by `open_worker`, a context manager.

    Args:
        client: the connection that it was opened on.
        number: what the supervisor knows it by.
        kind: what runs inside.
    """

    def __init__(self, client, number: int, kind: str):
        self.kind = kind
        self._client, self._number, self._open = client, number, True

    def call(self, request: Mapping[str, Any], *, limits: Limits | None = None) -> Reply:
        """Ask once and wait for the answer.

        Args:
            request: a JSON object; for kind "code" `stdin` (text) and `args` (list of texts).
            limits: of this call; the worker's own by default.

        Returns:
            How it ran; and, for other kinds than "code", the handler's answer.

        Raises:
            SandboxError: the worker is gone: a call before broke a limit, it ended by itself, or it was closed.
        """
        if not self._open:
            raise SandboxError("worker is gone", value="it was closed", remedy="Open another one.")
        bounds = limits.to_json() if limits is not None else None
        future = self._client.request("call", worker=self._number, request=dict(request), limits=bounds)
        answer = future.result()
        return Reply(Result.from_json(answer["result"]), answer["value"])

    def close(self) -> None:
        """Kill the sandbox with all that runs in it; may be called twice."""
        if self._open:
            self._open = False
            if self._client.alive:
                self._client.request("close", worker=self._number).result()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_worker(
    kind: str,
    *,
    setup: Mapping[str, Any] | None = None,
    files: Files | None = None,
    limits: Limits | None = None,
) -> Worker:
    """Open a sandbox for one candidate or one episode.

    Args:
        kind: "code", which runs `setup["program"]` anew for each call; or the name of a module of `inside/`, whose
            `Handler(setup, files)` is made once and whose `handle(request)` answers each call.
        setup: a JSON object.
        files: name -> bytes or path outside; for "code" they lie in the working folder, else the handler is told where.
        limits: of the set-up, and of each call that brings none of its own.

    Returns:
        The worker, ready for calls.

    Raises:
        ArgumentError: the kind or a file name can not be used.
        SandboxError: no sandbox came up, twice.
    """
    if not re.fullmatch(r"[a-z_]+", kind) or kind in _NOT_KINDS or not (kind == "code" or _handler_exists(kind)):
        raise ArgumentError("kind of worker must be code or a module with a Handler", value=kind)
    fields = job(setup or {}, files, limits, kind=kind)
    for attempt in (0, 1):
        client = access.connect()
        if kind == "shell" and client.tier != "ns":
            raise SandboxError("shell workers need tier ns", value=client.tier)
        try:
            number = client.worker_id()
            client.request("open", worker=number, **fields).result()
            return Worker(client, number, kind)
        except SandboxError:
            if attempt:
                raise
    raise AssertionError("unreachable")


class WorkerSession:
    """What sessions share: one worker at a time, removed with all of its state when the session ends.

    Args:
        kind: what runs inside.
        setup: given to it when it starts.
        files: shown to it.
        limits: of each call.
        open_with: what opens sandboxes; None for `open_worker`.
    """

    def __init__(
        self, kind: str, *, setup: Mapping[str, Any], files: Files, limits: Limits, open_with: OpenWorker | None
    ):
        self.limits = limits
        self._kind, self._setup, self._files = kind, setup, files
        self._open_with = open_with or open_worker
        self._stack = contextlib.ExitStack()
        self._worker: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the sandbox, and with it all state."""
        self._worker = None
        with contextlib.suppress(SandboxError):
            self._stack.close()

    def _start(self) -> None:
        opened = self._open_with(self._kind, setup=self._setup, files=self._files, limits=self.limits)
        self._worker = self._stack.enter_context(opened)


def job(setup: Mapping[str, Any], files: Files | None, limits: Limits | None, *, kind: str = "code") -> dict[str, Any]:
    """Give the fields of a request that make a sandbox; checks the files."""
    limits = limits or Limits()
    named = {name: _file(name, value) for name, value in (files or {}).items()}
    if len(named) > _MOST_FILES:
        raise ArgumentError(f"at most {_MOST_FILES} files go into a sandbox", value=len(named))
    return {"kind": kind, "setup": dict(setup), "files": named, "limits": limits.to_json()}


def _file(name: str, value: bytes | str | os.PathLike) -> dict[str, str]:
    parts = name.split("/")
    if not name or "\0" in name or {"", ".", ".."} & set(parts) or len(name) > 200:
        raise ArgumentError("a file's name must be a relative path without dots", value=name)
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    path = os.fspath(value)
    if not os.path.exists(path):
        raise ArgumentError("a file for a sandbox must exist", value=str(path))
    return {"path": os.path.abspath(path)}


def _handler_exists(kind: str) -> bool:
    return (_INSIDE / f"{kind}.py").is_file()
