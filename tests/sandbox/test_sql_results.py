"""Results of SQL scripts against the reference's: order, duplicates, types, failures on either side."""

from __future__ import annotations

import sqlite3

import pytest

from jaxrl_agent.errors import SandboxError
from jaxrl_agent.sandbox.results import Status
from jaxrl_agent.sandbox.sql import SqlResult, compare_results, has_top_level_order_by, judge_sql
from jaxrl_agent.testing.plain_workers import plain_worker


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "template.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t(a INTEGER)")
        connection.executemany("INSERT INTO t VALUES (?)", [(n,) for n in range(1000)])
    connection.close()
    return path


@pytest.mark.parametrize(
    ("sql", "ordered"),
    [
        ("SELECT a FROM t ORDER BY a", True),
        ("select a from t order\n by a limit 3", True),
        ("SELECT a FROM t UNION SELECT 1 ORDER BY 1", True),
        ("SELECT a FROM t WHERE a = (SELECT max(a) FROM t ORDER BY a)", False),
        ("SELECT a, rank() OVER (ORDER BY a) FROM t", False),
        ("SELECT 'x ORDER BY a' FROM t -- ORDER BY a", False),
        ('SELECT "ORDER" FROM t', False),
        ("SELECT a FROM orders GROUP BY a /* ORDER BY */", False),
        ("SELECT ')' FROM t ORDER BY 1", True),
    ],
)
def test_only_an_order_at_the_top_level_counts(sql, ordered):
    assert has_top_level_order_by(sql) is ordered


FAILED = SqlResult(Status.RUNTIME_ERROR)


def rows(*values, columns=("a",), status=Status.OK):
    return SqlResult(status, columns, tuple(values))


@pytest.mark.parametrize(
    ("candidate", "ordered", "status"),
    [
        (rows((1,), (2,)), True, Status.OK),
        (rows((2,), (1,)), True, Status.WRONG),
        (rows((2,), (1,)), False, Status.OK),
        (rows((1,), (2,), (2,)), False, Status.WRONG),
        (rows((1,), (2,), columns=("another name",)), False, Status.OK),
        (rows((1.0,), (2,)), False, Status.OK),
        (rows(("1",), (2,)), False, Status.WRONG),
        (SqlResult(Status.OK), False, Status.WRONG),
        (rows((1,), (2,), status=Status.OUTPUT_LIMIT), False, Status.OUTPUT_LIMIT),
        (SqlResult(Status.RUNTIME_ERROR, error="no such table: u"), False, Status.RUNTIME_ERROR),
    ],
)
def test_results_are_compared_with_the_reference(candidate, ordered, status):
    verdict = compare_results(candidate, rows((1,), (2,)), ordered=ordered)
    assert (verdict.status, verdict.ok, verdict.could_not_check) == (status, status is Status.OK, False)


@pytest.mark.parametrize(
    "reference", [SqlResult(Status.RUNTIME_ERROR), SqlResult(Status.OK), rows(status=Status.OUTPUT_LIMIT)]
)
@pytest.mark.parametrize("candidate", [rows(), SqlResult(Status.RUNTIME_ERROR), SqlResult(Status.OK)])
def test_a_reference_without_a_result_decides_nothing(reference, candidate):
    verdict = compare_results(candidate, reference, ordered=False)
    assert verdict.could_not_check
    assert not verdict.ok


@pytest.mark.parametrize("candidate", [FAILED, SqlResult(Status.OK), rows(columns=("a", "b"))])
def test_a_failure_never_equals_an_empty_result(candidate):
    assert not compare_results(candidate, rows(), ordered=False).ok
    assert compare_results(rows(), rows(), ordered=False).ok


def test_candidates_are_judged_on_their_own_copies(database):
    def judge(candidate, reference="SELECT a FROM t WHERE a < 2", **options):
        return judge_sql(candidate, reference, database, open_worker=plain_worker, **options)

    assert judge("SELECT a FROM t WHERE a IN (1, 0) ORDER BY a DESC").ok
    assert not judge("SELECT a FROM t ORDER BY a DESC LIMIT 2").ok
    assert not judge("SELECT a FROM t WHERE a < 2 ORDER BY a DESC", "SELECT a FROM t WHERE a < 2 ORDER BY a").ok
    assert judge("DELETE FROM t; SELECT a FROM t").status is Status.SECURITY_VIOLATION
    assert judge("SELECT 1", "SELECT missing").could_not_check
    emptied = judge("DELETE FROM t; SELECT a FROM t", "SELECT a FROM t", writable=True)
    assert emptied.status is Status.WRONG
    assert "1000" not in emptied.feedback


def test_a_judge_without_sandboxes_could_not_check(database):
    def closed(kind, **options):
        raise SandboxError("no namespaces")

    verdict = judge_sql("SELECT 1", "SELECT 1", database, open_worker=closed)
    assert verdict.could_not_check
    assert not verdict.ok
