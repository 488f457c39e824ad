"""Trusted side of tool episodes: each episode's objects live in a sandboxed process of their own.

Calls are read here as JSON within limits; names and arguments are checked where the objects are. States come back as
JSON and are hashed here.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl_agent.errors import ArgumentError, SandboxError
from jaxrl_agent.sandbox.compare import canonical_json
from jaxrl_agent.sandbox.inside.tools import Malformed, depth_of, parse_calls
from jaxrl_agent.sandbox.results import PRECEDENCE, Limits, Reply, Status
from jaxrl_agent.sandbox.worker import OpenWorker, WorkerSession


@dataclasses.dataclass(frozen=True)
class Tool:
    """One tool of an episode.

    Attributes:
        name: what the model calls it.
        instance: name of the object that answers.
        parameters: JSON schema of its arguments; BFCL's names of types are understood.
        method: of the object; "" for the tool's own name.
    """

    name: str
    instance: str
    parameters: Mapping[str, Any]
    method: str = ""


@dataclasses.dataclass(frozen=True)
class Instance:
    """One object of an episode: a class of trusted source, filled with a scenario.

    Attributes:
        name: what tools refer to.
        module: dotted name of the module that has the class.
        class_name: the class; it is called without arguments.
        load: method that takes the scenario; "" for none.
        scenario: JSON.
        options: keyword arguments of `load`.
    """

    name: str
    module: str
    class_name: str
    load: str = ""
    scenario: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class ToolResult:
    """What one call gave: its status, and the text that the model sees."""

    status: Status
    text: str


@dataclasses.dataclass(frozen=True)
class ToolResults:
    """What the calls of one reply gave.

    Attributes:
        status: the gravest of the calls' statuses, or what ended the episode's process.
        results: one entry for each call that was run, in order; later calls run even if one fails.
        reason: one line for people.
        alive: false once the process was killed: the state is lost, the episode is over.
        wall_s: seconds on the clock.
        cpu_s: seconds of CPU time.
    """

    status: Status
    results: tuple[ToolResult, ...] = ()
    reason: str = ""
    alive: bool = True
    wall_s: float = 0.0
    cpu_s: float = 0.0


class ToolSession(WorkerSession):
    """One episode; use it as a context manager.

    Args:
        modules: dotted name -> source file, in an order in which they can be imported.
        instances: the objects.
        tools: what may be called; names must differ.
        withheld: names of tools that are not offered until `offer` names them.
        limits: of the calls of one reply together.
        max_result_bytes: UTF-8 bytes of one result's text.
        open_worker: what opens sandboxes; None for the real ones.

    Raises:
        ArgumentError: two tools of one name, or a tool of an unknown object.
        SandboxError: the episode could not be set up, twice.
    """

    def __init__(
        self,
        modules: Mapping[str, str | Path | bytes],
        instances: Sequence[Instance],
        tools: Sequence[Tool],
        *,
        withheld: Iterable[str] = (),
        limits: Limits | None = None,
        max_result_bytes: int = 1 << 19,
        open_worker: OpenWorker | None = None,
    ):
        names = [tool.name for tool in tools]
        if len(set(names)) != len(names):
            raise ArgumentError("names of tools must differ", value=sorted(names))
        strangers = {tool.instance for tool in tools} - {instance.name for instance in instances}
        if strangers:
            raise ArgumentError("tools must belong to objects of the episode", value=sorted(strangers))
        setup = {
            "modules": [{"name": name, "file": f"module_{number}.py"} for number, name in enumerate(modules)],
            "instances": [_declaration(instance) for instance in instances],
            "tools": [
                {
                    "name": tool.name,
                    "instance": tool.instance,
                    "parameters": dict(tool.parameters),
                    "method": tool.method or tool.name,
                }
                for tool in tools
            ],
            "offered": [name for name in names if name not in set(withheld)],
            "max_result_bytes": max_result_bytes,
        }
        files = {f"module_{number}.py": source for number, source in enumerate(modules.values())}
        super().__init__("tools", setup=setup, files=files, limits=limits or Limits(), open_with=open_worker)
        self._start()

    def call(self, text: str) -> ToolResults:
        """Run the calls that a model wrote as JSON; see `inside.tools.parse_calls`.

        Raises:
            SandboxError: the sandbox failed, or the episode is over.
        """
        try:
            calls = parse_calls(text)
        except Malformed as error:
            return ToolResults(Status.RUNTIME_ERROR, reason=f"no tool calls: {error}")
        return self.run(calls)

    def run(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> ToolResults:
        """Run calls that are data already: of a model's parsed reply, or of a reference solution.

        Raises:
            SandboxError: the sandbox failed, or the episode is over.
        """
        reply = self._ask({"calls": [[name, dict(arguments)] for name, arguments in calls]})
        used = {"wall_s": reply.result.wall_s, "cpu_s": reply.result.cpu_s}
        if reply.result.status is not Status.OK:
            self.close()
            return ToolResults(reply.result.status, reason=reply.result.reason, alive=False, **used)
        results = read_results(reply.value, len(calls))
        status = min((result.status for result in results), key=PRECEDENCE.index, default=Status.OK)
        return ToolResults(status, results, **used)

    def offer(self, names: Iterable[str]) -> None:
        """Let the model call tools that were withheld."""
        self._trusted({"offer": sorted(names)})

    def state(self) -> dict[str, Any]:
        """Public attributes of every object, as JSON: {name: state}."""
        state = self._trusted({"state": True}).get("state")
        if not isinstance(state, dict):
            raise SandboxError("a tool worker must answer in its own form", value=type(state).__name__)
        return state

    def state_hash(self) -> str:
        """SHA-256 of the state in canonical JSON: equal states have equal hashes, whatever the order of keys."""
        return state_hash(self.state())

    def _trusted(self, request: dict[str, Any]) -> dict[str, Any]:
        reply = self._ask(request)
        if reply.result.status is not Status.OK or not isinstance(reply.value, dict):
            raise SandboxError("a tool worker must answer", value=reply.result.reason)
        return reply.value

    def _ask(self, request: dict[str, Any]) -> Reply:
        if self._worker is None:
            raise SandboxError("an episode that is over must not be asked", remedy="Open a new session.")
        return self._worker.call(request, limits=self.limits)


def _declaration(instance: Instance) -> dict[str, Any]:
    return {
        "name": instance.name,
        "module": instance.module,
        "class": instance.class_name,
        "load": instance.load,
        "scenario": dict(instance.scenario),
        "options": dict(instance.options),
    }


def read_results(value: Any, count: int) -> tuple[ToolResult, ...]:
    """Read what the worker wrote.

    Raises:
        SandboxError: it is not one result for each call.
    """
    try:
        results = tuple(ToolResult(Status(item["status"]), item["text"]) for item in value["results"])
        if len(results) == count and all(isinstance(result.text, str) for result in results):
            return results
        found = f"{len(results)} results of {count} calls"
    except (KeyError, TypeError, ValueError) as error:
        found = str(error)
    raise SandboxError("a tool worker must answer in its own form", value=found)


def state_hash(state: Mapping[str, Any]) -> str:
    """SHA-256 of a state in canonical JSON: 65 and 65.0 are equal, true and 1 are not."""
    if depth_of(state) > 400:
        raise SandboxError("a state must not be nested that deeply", value=depth_of(state))
    return hashlib.sha256(canonical_json(state).encode("utf-8", "backslashreplace")).hexdigest()
