"""Grade what a shell episode left: in a new sandbox, by trusted tests, over files that are nothing but data.

The tests' folder and the episode's files are shown read-only; the interpreter takes nothing from its surroundings
(`-I`), so that files the episode made (conftest.py, sitecustomize.py, reward files, programs in PATH, hooks of git)
have no say. Tests should run the episode's programs as processes of their own and judge what these do; importing
them would let them answer for the test.
"""

from __future__ import annotations

import ast
import json
import os
import pathlib
import secrets
import shutil
from collections.abc import Mapping

from jaxrl_agent.errors import ArgumentError, SandboxError
from jaxrl_agent.sandbox import access, bubblewrap, leftovers
from jaxrl_agent.sandbox.results import CaseVerdict, Limits, Result, Status, Verdict
from jaxrl_agent.sandbox.shell import Collected, Source, open_shell, read_source

TESTS, EPISODE = "/tests", "/episode"
_HARNESS = (pathlib.Path(__file__).parent / "inside" / "shell_tests.py").read_text()
_DEFAULT = Limits(cpu_s=20.0, wall_s=60.0)
# Settings in the environment stand above those of a repository that the episode has made.
_GIT = {"core.hooksPath": "/dev/null", "core.fsmonitor": "false", "safe.directory": "*"}


def verify(
    files: Mapping[str, bytes],
    tests: Mapping[str, Source],
    command: str | None = None,
    *,
    limits: Limits | None = None,
    workdir: str = "/app",
    root: str | os.PathLike | None = None,
    network: bool = False,
    writable: bool = False,
) -> Verdict:
    """Grade an episode's files.

    Args:
        files: absolute path in the episode -> bytes, as `Shell.collect` gives them (then with their modes). All are
            shown under `/episode`, those below `workdir` also in their own place; all read-only.
        tests: name -> source of what is shown under `/tests`. Without a command these are Python files
            (`test_*.py`); each function `test_*` without arguments, also of a class `Test*`, is a test, which passes if
            it returns.
        command: instead, a command line for bash; it passes if its exit code is 0. Use one whose own exit code says so,
            never one that ends by running the episode's programs.
        limits: of all tests together.
        workdir: where tests start.
        root: prepared root file system, as for `open_shell`.
        network: whether sockets may be opened.
        writable: show those below `workdir` as copies that may be changed, for programs that write beside themselves.

    Returns:
        Passed only if every test has reported that it passed and the whole ended in time. `could_not_check` if no
        sandbox came up in two attempts. A test's file that can not be imported has failed: it may import the episode's
        files, and an episode must not be able to get out of being graded. That the tests themselves need nothing which
        is missing shows when the reference solution is graded.

    Raises:
        ArgumentError: no tests, or files that can not be shown.
    """
    limits = limits or _DEFAULT
    sources = _sources(tests)
    names = _find_tests(sources) if command is None else []
    if command is None and not names:
        raise ArgumentError("tests must have at least one function test_*", value=sorted(tests))
    if any(not path.startswith("/") or {"..", "."} & set(path.split("/")) for path in files):
        raise ArgumentError("files must have absolute paths", value=sorted(files)[:5])
    for attempt in (0, 1):
        folder = leftovers.make_folder()
        try:
            binds = _lay_out(pathlib.Path(folder), files, sources, workdir)
            own = _copies(files, workdir) if writable else {}
            binds = binds[:-1] if writable else binds
            env = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_COUNT": str(len(_GIT))}
            for at, (key, value) in enumerate(_GIT.items()):
                env |= {f"GIT_CONFIG_KEY_{at}": key, f"GIT_CONFIG_VALUE_{at}": value}
            # Without /proc no process can reach into another, whoever it belongs to.
            opened = {"limits": limits, "workdir": workdir, "network": network, "env": env, "binds": binds}
            with open_shell(root, files=own, proc=False, **opened) as shell:
                if command is not None:
                    return _of_command(shell.run(command))
                token = secrets.token_hex(16)
                order = json.dumps({"folder": TESTS, "names": names, "token": token})
                result, report = shell.run_report([_interpreter(root), "-I", "-c", _HARNESS, order])
                return _of_report(result, report, names, token)
        except SandboxError as error:
            if attempt:
                return Verdict(
                    Status.RUNTIME_ERROR,
                    passed=0,
                    total=max(1, len(names)),
                    results=(CaseVerdict(Status.RUNTIME_ERROR, str(error)),),
                    could_not_check=True,
                )
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    raise AssertionError("unreachable")


def _interpreter(root: str | os.PathLike | None) -> str:
    if root is not None:
        return bubblewrap.SYSTEM_PYTHON
    return access.connect().request("info").result()["info"]["interpreter"]


def _sources(tests: Mapping[str, Source]) -> list[tuple[str, bytes, int]]:
    found = []
    for name, source in tests.items():
        if not name or name.startswith("/") or {"", ".", ".."} & set(name.split("/")) or "\0" in name:
            raise ArgumentError("a test's name must be a relative path without dots", value=name)
        found += read_source(name, source)
    if not found:
        raise ArgumentError("tests must be given", value=dict(tests))
    return found


def _find_tests(sources: list[tuple[str, bytes, int]]) -> list[str]:
    """Name the tests of all files in order, without running anything."""
    names = []
    for path, text, _ in sources:
        if not (os.path.basename(path).startswith("test_") and path.endswith(".py")):
            continue
        try:
            tree = ast.parse(text)
        except SyntaxError as error:
            raise ArgumentError("a test file must be Python", value=f"{path}: {error}") from error
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
                names += [f"{path}::{node.name}::{name}" for name in _functions(path, node.body, arguments=1)]
        names += [f"{path}::{name}" for name in _functions(path, tree.body, arguments=0)]
    return names


def _functions(path: str, body: list[ast.stmt], *, arguments: int) -> list[str]:
    found = []
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            wanted = len(node.args.posonlyargs) + len(node.args.args) - len(node.args.defaults)
            if isinstance(node, ast.AsyncFunctionDef) or wanted > arguments:
                raise ArgumentError("a test must be a plain function without arguments", value=f"{path}::{node.name}")
            found.append(node.name)
    return found


def _lay_out(
    folder: pathlib.Path, files: Mapping[str, bytes], sources: list[tuple[str, bytes, int]], workdir: str
) -> list[tuple[str, str]]:
    """Write both trees outside, readable by every user; give what is shown where."""
    episode, tests = folder / "episode", folder / "tests"
    own = episode / workdir.lstrip("/")
    modes = files.modes if isinstance(files, Collected) else {}
    for place in (own, tests):
        place.mkdir(parents=True)
    for path, data in files.items():
        _write(episode / path.lstrip("/"), data, 0o755 if modes.get(path, 0) & 0o111 else 0o644)
    for name, data, mode in sources:
        _write(tests / name, data, 0o755 if mode & 0o111 else 0o644)
    for place, _, _ in os.walk(folder):
        os.chmod(place, 0o755)
    return [(str(tests), TESTS), (str(episode), EPISODE), (str(own), workdir)]


def _copies(files: Mapping[str, bytes], workdir: str) -> dict[str, tuple[bytes, int]]:
    """Give the files below `workdir`, with their modes, as `open_shell` takes them."""
    modes = files.modes if isinstance(files, Collected) else {}
    below = workdir.rstrip("/") + "/"
    return {path: (data, modes.get(path, 0o644)) for path, data in files.items() if path.startswith(below)}


def _write(path: pathlib.Path, data: bytes, mode: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise ArgumentError("files must fit into one tree", value=f"{path.name}: {error.strerror}") from error
    path.chmod(mode)


def _of_command(result: Result) -> Verdict:
    passed = result.status is Status.OK and result.exit_code == 0
    status = Status.OK if passed else Status.WRONG if result.status is Status.RUNTIME_ERROR else result.status
    case = CaseVerdict(status, result.reason, result.wall_s, result.cpu_s)
    feedback = "" if passed else f"The check failed ({status})."
    return Verdict(status, int(passed), 1, (case,), feedback, tier=result.tier)


def _of_report(result: Result, report: str, names: list[str], token: str) -> Verdict:
    """Make a verdict of what the harness has reported; what is missing, unknown or said twice has failed."""
    said: dict[str, list[CaseVerdict]] = {name: [] for name in names}
    for line in report.splitlines():
        try:
            entry = json.loads(line)
            if entry["token"] != token:
                continue
            said[entry["name"]].append(CaseVerdict(Status(entry["status"]), entry["reason"]))
        except (ValueError, KeyError, TypeError):
            continue
    missing = result.status if result.status is not Status.OK else Status.RUNTIME_ERROR
    nothing = CaseVerdict(missing, result.reason or "no result")
    cases = tuple(entries[0] if len(entries) == 1 else nothing for entries in said.values())
    passed = sum(case.status is Status.OK for case in cases)
    failed = [case.status for case in cases if case.status is not Status.OK]
    status = failed[0] if failed else result.status
    feedback = "" if status is Status.OK else f"{passed} of {len(names)} tests passed. First failure: {status}."
    return Verdict(status, passed, len(names), cases, feedback, tier=result.tier)
