"""Run one program, or many, each in a sandbox of its own."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxrl_agent.errors import ArgumentError, SandboxError
from jaxrl_agent.sandbox import access
from jaxrl_agent.sandbox.client import Client
from jaxrl_agent.sandbox.results import Limits, Result
from jaxrl_agent.sandbox.worker import Files, job

_POLL_SECONDS = 0.002


def run_program(
    program: str,
    *,
    stdin: str = "",
    files: Files | None = None,
    args: Sequence[str] | None = None,
    limits: Limits | None = None,
) -> Result:
    """Run a Python program in a fresh sandbox and wait for its end.

    Args:
        program: its text; it runs as `main.py` in an empty folder.
        stdin: its standard input.
        files: name -> bytes or path, put beside it.
        args: its command-line arguments.
        limits: what it may use.

    Returns:
        How it ended and what it wrote; a program that fails or is stopped is a result, never an exception.

    Raises:
        ArgumentError: an argument of the wrong type.
        SandboxError: it could not be run, in two attempts; says nothing about the program.
    """
    fields = _fields(program, stdin, files, args, limits)
    for attempt in (0, 1):
        client = access.connect()
        try:
            return _result(_submit(client, fields).result())
        except SandboxError:
            if attempt:
                raise
    raise AssertionError("unreachable")


async def arun_program(
    program: str,
    *,
    stdin: str = "",
    files: Files | None = None,
    args: Sequence[str] | None = None,
    limits: Limits | None = None,
) -> Result:
    """Run a Python program as `run_program` does, without blocking the event loop."""
    fields = _fields(program, stdin, files, args, limits)
    for attempt in (0, 1):
        client = await asyncio.to_thread(access.connect)
        while not client.enter(wait=False):
            await asyncio.sleep(_POLL_SECONDS)
        try:
            return _result(await asyncio.wrap_future(_send(client, fields)))
        except SandboxError:
            if attempt:
                raise
    raise AssertionError("unreachable")


def run_programs(
    jobs: Iterable[str | Mapping[str, Any]], *, limits: Limits | None = None
) -> list[Result | SandboxError]:
    """Run many programs, as many at a time as there are workers; at most `queue` of them wait in the supervisor.

    Args:
        jobs: programs, or mappings of `run_program`'s arguments.
        limits: of jobs that name none.

    Returns:
        One entry a job, in order: its result, or the error that kept it from being checked in two attempts.
    """
    under_way: collections.deque = collections.deque()
    for entry in jobs:
        arguments = {"program": entry} if isinstance(entry, str) else dict(entry)
        unknown = arguments.keys() - {"program", "stdin", "files", "args", "limits"}
        if unknown:
            raise ArgumentError("a job names arguments of run_program", value=sorted(unknown))
        rest = [arguments.get(name, default) for name, default in (("stdin", ""), ("files", None), ("args", None))]
        fields = _fields(arguments.get("program"), *rest, arguments.get("limits") or limits)
        under_way.append((fields, _try_submit(fields)))
    return [_second_attempt(fields, future) for fields, future in under_way]


def _try_submit(fields: dict[str, Any]) -> concurrent.futures.Future | SandboxError:
    client = access.connect()
    try:
        return _submit(client, fields)
    except SandboxError as error:
        return error


def _second_attempt(fields: dict[str, Any], future: concurrent.futures.Future | SandboxError) -> Result | SandboxError:
    try:
        if not isinstance(future, SandboxError):
            return _result(future.result())
    except SandboxError:
        pass
    try:
        return _result(_submit(access.connect(), fields).result())
    except SandboxError as error:
        return error


def _submit(client: Client, fields: dict[str, Any]) -> concurrent.futures.Future:
    client.enter()
    return _send(client, fields)


def _send(client: Client, fields: dict[str, Any]) -> concurrent.futures.Future:
    """Send a run; its place in the queue is given back when the answer is there."""
    try:
        future = client.request("run", **fields)
    except BaseException:
        client.leave()
        raise
    future.add_done_callback(lambda _: client.leave())
    return future


def _fields(program: Any, stdin: Any, files: Files | None, args: Sequence[str] | None, limits: Limits | None) -> dict:
    for name, value in (("program", program), ("stdin", stdin)):
        if not isinstance(value, str):
            raise ArgumentError(f"{name} must be text", value=type(value).__name__)
    words = list(args or ())
    if isinstance(args, str) or not all(isinstance(word, str) for word in words):
        raise ArgumentError("args must be a list of texts", value=args)
    return {"stdin": stdin, "args": words, **job({"program": program}, files, limits)}


def _result(answer: dict[str, Any]) -> Result:
    return Result.from_json(answer["result"])
