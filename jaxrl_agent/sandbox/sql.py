"""Trusted side of SQL episodes: sandboxed sessions on copies of a template database, and the comparison of results.

The reference query and the candidate's never share a sandbox. A reference that fails, or whose result is too large,
decides nothing: the candidate could not be checked. A candidate that fails never passes, not even against an empty
result.
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

from jaxrl_agent.errors import ArgumentError, DataError, SandboxError
from jaxrl_agent.sandbox.compare import DEFAULT_RULES, Rules, same_rows
from jaxrl_agent.sandbox.inside.sql import tokens
from jaxrl_agent.sandbox.results import CaseVerdict, Limits, Reply, Status, Verdict
from jaxrl_agent.sandbox.worker import OpenWorker, WorkerSession

FEEDBACK_BYTES = 2048
INNER_SHARE = 0.9  # of the CPU limit, after which the query is stopped from inside and the session lives on


@dataclasses.dataclass(frozen=True)
class SqlResult:
    """What came of one script.

    Attributes:
        status: `OK`, or which limit or rule ended it.
        columns: names of the last statement that gives rows; None if none did.
        rows: its rows, of None, int, float, str and bytes; with `OUTPUT_LIMIT` the first of them.
        error: words for the model; "" if all went well.
        restarted: whether the session had to begin anew from the template after this script, so that what scripts
            before it changed is lost.
        wall_s: seconds on the clock.
        cpu_s: seconds of CPU time.
    """

    status: Status
    columns: tuple[str, ...] | None = None
    rows: tuple[tuple[Any, ...], ...] = ()
    error: str = ""
    restarted: bool = False
    wall_s: float = 0.0
    cpu_s: float = 0.0


class SqlSession(WorkerSession):
    """One episode on a private copy of a database; use it as a context manager.

    Args:
        database: SQLite file, the template; it is only read.
        limits: of each script.
        max_rows: rows of an answer.
        max_bytes: bytes of an answer, in JSON.
        writable: whether scripts may change the copy; else all but queries is refused.
        open_worker: what opens sandboxes; None for the real ones.

    Raises:
        DataError: there is no such file.
    """

    def __init__(
        self,
        database: str | Path,
        *,
        limits: Limits | None = None,
        max_rows: int = 10_000,
        max_bytes: int = 1 << 20,
        writable: bool = False,
        open_worker: OpenWorker | None = None,
    ):
        if max_rows < 1 or max_bytes < 1:
            raise ArgumentError("max_rows and max_bytes must be at least 1", value=(max_rows, max_bytes))
        self.database = Path(database).resolve()
        if not self.database.is_file():
            raise DataError("a template database must be a file", value=str(database))
        self.sha256 = file_hash(self.database)
        limits = limits or Limits()
        setup = {
            "cpu_s": INNER_SHARE * limits.cpu_s,
            "max_rows": max_rows,
            "max_bytes": max_bytes,
            "heap_bytes": limits.memory_mb << 19,
            "writable": writable,
        }
        files = {"database": self.database}
        super().__init__("sql", setup=setup, files=files, limits=limits, open_with=open_worker)

    def verify(self) -> None:
        """Make sure that the template is what it was at the start.

        Raises:
            SandboxError: it changed.
        """
        if file_hash(self.database) != self.sha256:
            raise SandboxError("a template database must not change", value=str(self.database))

    def query(self, sql: str) -> SqlResult:
        """Run a script: statements separated by semicolons.

        After a script that had to be killed, the next one finds a fresh copy. A sandbox that fails is replaced once.

        Raises:
            SandboxError: the sandbox failed twice, or failed in a writable session, whose state is lost with it.
        """
        request = {"sql": sql.encode("utf-8", "backslashreplace").decode("utf-8")}
        try:
            reply = self._call(request)
        except SandboxError:
            self.close()
            if self._setup["writable"]:
                raise
            reply = self._call(request)
        used = {"wall_s": reply.result.wall_s, "cpu_s": reply.result.cpu_s}
        if reply.result.status is Status.OK:
            return dataclasses.replace(read_answer(reply.value), **used)
        self.close()
        return SqlResult(reply.result.status, error=reply.result.reason, restarted=True, **used)

    def _call(self, request: dict[str, Any]) -> Reply:
        if self._worker is None:
            self._start()
        return self._worker.call(request, limits=self.limits)


def file_hash(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- answers


def read_answer(value: Any) -> SqlResult:
    """Read what the worker wrote.

    Raises:
        SandboxError: it is no answer.
    """
    try:
        columns, rows = value["columns"], value["rows"]
        if columns is not None and not all(isinstance(name, str) for name in columns):
            raise ValueError("names of columns")
        if columns is None and rows:
            raise ValueError("rows without columns")
        return SqlResult(
            Status(value["status"]),
            None if columns is None else tuple(columns),
            tuple(_read_row(row, len(columns)) for row in rows),
            str(value["error"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SandboxError("an SQL worker must answer in its own form", value=str(error)) from error


def _read_row(row: Any, width: int) -> tuple[Any, ...]:
    if not isinstance(row, list) or len(row) != width:
        raise ValueError("width of a row")
    return tuple(_read_cell(cell) for cell in row)


def _read_cell(cell: Any) -> Any:
    if isinstance(cell, dict):
        ((tag, body),) = cell.items()
        return {"blob": bytes.fromhex, "float": float}[tag](body)
    if cell is not None and type(cell) not in (int, float, str):
        raise ValueError("type of a value")
    return cell


# ---- judging


def has_top_level_order_by(sql: str) -> bool:
    """Whether a query fixes the order of its rows: ORDER BY outside of all brackets, strings, names and comments."""
    depth, before = 0, ""
    for _, text in tokens(sql):
        depth += {"(": 1, ")": -1}.get(text, 0)
        word = text.upper()
        if depth == 0 and (before, word) == ("ORDER", "BY"):
            return True
        before = word
    return False


def compare_results(
    candidate: SqlResult, reference: SqlResult, *, ordered: bool, rules: Rules = DEFAULT_RULES
) -> Verdict:
    """Say whether a candidate's result equals the reference's.

    Args:
        candidate: result of the candidate's last script.
        reference: result of the reference query, from its own session.
        ordered: whether the order of rows counts; see `has_top_level_order_by`.
        rules: tolerance of floats.
    """
    if reference.status is not Status.OK or reference.columns is None:
        return _verdict(Status.WRONG, candidate, f"the reference failed: {reference.status}", could_not_check=True)
    if candidate.status is not Status.OK:
        return _verdict(candidate.status, candidate, candidate.error)
    if candidate.columns is None:
        return _verdict(Status.WRONG, candidate, "the script gave no rows")
    same = len(candidate.columns) == len(reference.columns)
    if same and same_rows(candidate.rows, reference.rows, ordered=ordered, rules=rules):
        return _verdict(Status.OK, candidate, "")
    return _verdict(Status.WRONG, candidate, "wrong result")


def _verdict(status: Status, candidate: SqlResult, reason: str, *, could_not_check: bool = False) -> Verdict:
    case = CaseVerdict(status, reason, candidate.wall_s, candidate.cpu_s)
    feedback = "" if could_not_check else reason.encode("utf-8", "replace")[:FEEDBACK_BYTES].decode("utf-8", "ignore")
    return Verdict(status, int(status is Status.OK), 1, (case,), feedback=feedback, could_not_check=could_not_check)


def judge_sql(
    candidate: str,
    reference: str,
    database: str | Path,
    *,
    ordered: bool | None = None,
    rules: Rules = DEFAULT_RULES,
    **options: Any,
) -> Verdict:
    """Run a candidate's query and the reference, each on its own copy of a database, and compare the results.

    Args:
        candidate: script of the candidate.
        reference: query that is right.
        database: SQLite file.
        ordered: whether the order of rows counts; None if the reference has an ORDER BY at its top level.
        rules: tolerance of floats.
        options: of `SqlSession`.
    """
    ordered = has_top_level_order_by(reference) if ordered is None else ordered
    try:
        with SqlSession(database, **options) as session:
            right = session.query(reference)
        with SqlSession(database, **options) as session:
            got = session.query(candidate)
            session.verify()
    except SandboxError as error:
        case = CaseVerdict(Status.WRONG, f"could not be checked: {error}")
        return Verdict(Status.WRONG, 0, 1, (case,), could_not_check=True)
    return compare_results(got, right, ordered=ordered, rules=rules)
