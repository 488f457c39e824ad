"""SQL episodes: what a script may do, what it costs at most, and what a session survives."""

from __future__ import annotations

import math
import sqlite3
import time

import pytest

from jaxrl_agent.errors import ArgumentError, DataError, SandboxError
from jaxrl_agent.sandbox.inside.sql import statements
from jaxrl_agent.sandbox.results import Limits, Reply, Result, Status
from jaxrl_agent.sandbox.sql import (
    SqlSession,
    file_hash,
    read_answer,
)
from jaxrl_agent.testing.plain_workers import plain_worker

ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r)"


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "it's a template?.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t(a INTEGER, b TEXT COLLATE NOCASE)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(n, f"row {n % 10}") for n in range(1000)])
        connection.execute("CREATE INDEX by_a ON t(a)")
        connection.execute("CREATE VIEW v AS SELECT a FROM t WHERE a < 3")
    connection.close()
    return path


@pytest.fixture
def session(database):
    with SqlSession(database, open_worker=plain_worker) as session:
        yield session


@pytest.fixture
def writable(database):
    with SqlSession(database, open_worker=plain_worker, writable=True) as session:
        yield session


# ---- queries


def test_a_query_gives_columns_and_rows_of_every_type(session):
    result = session.query("SELECT 7 AS n, 2.5, 'é', NULL, x'00ff', 9e999, -9223372036854775808, CAST(x'ff' AS TEXT)")
    assert (result.status, result.columns[0], result.error) == (Status.OK, "n", "")
    assert result.rows == ((7, 2.5, "é", None, b"\x00\xff", math.inf, -(2**63), "\N{REPLACEMENT CHARACTER}"),)


def test_collations_and_views_of_the_template_are_kept(session):
    assert session.query("SELECT count(*) FROM t WHERE b = 'ROW 3'").rows == ((100,),)
    assert session.query("SELECT * FROM v").rows == ((0,), (1,), (2,))


def test_the_last_statement_with_rows_answers_a_script(session):
    assert session.query("SELECT 1; SELECT 'a;b' -- c;\n; /* SELECT 2; */ ;").rows == (("a;b",),)


@pytest.mark.parametrize("script", ["", ";;", "-- nothing", "   "])
def test_a_script_without_statements_gives_no_columns(session, script):
    result = session.query(script)
    assert (result.status, result.columns, result.rows) == (Status.OK, None, ())


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("SELECT missing FROM t", "missing"),
        ("SELEC 1", "syntax"),
        ("SELECT 1; SELECT (", "incomplete"),
        ("SELECT 'open", "unrecognized"),
        ("SELECT zeroblob(20000000)", "too big"),
        ("SELECT '" + "x" * 100_000 + "'", "100000 bytes"),
        ("SELECT 1\0", ""),
        ("SELECT '\ud800'", ""),
        ("SELECT " + "(" * 500 + "1" + ")" * 500, ""),
        ("SELECT 1" + " UNION SELECT 1" * 60, "compound"),
        ("SELECT no_such_function(1)", "no_such_function"),
        ("SELECT ?", ""),
    ],
)
def test_a_faulty_script_is_an_error_that_the_model_can_read(session, script, words):
    result = session.query(script)
    if script.endswith("'\ud800'"):
        assert result.rows == (("\\ud800",),)
        return
    assert result.status is Status.RUNTIME_ERROR
    assert words in result.error
    assert (result.columns, result.rows) == (None, ())
    assert session.query("SELECT 1").rows == ((1,),)


@pytest.mark.parametrize(
    "script",
    [
        "PRAGMA table_info(t)",
        "PRAGMA table_xinfo('t')",
        "PRAGMA index_list(t)",
        "PRAGMA foreign_key_list(t)",
        "SELECT name FROM pragma_table_info('t')",
        "SELECT sql FROM sqlite_master",
        "SELECT value FROM json_each('[1, 2]')",
        "EXPLAIN QUERY PLAN SELECT * FROM t",
        "WITH x AS (SELECT 1) SELECT * FROM x",
        "SELECT a, row_number() OVER (ORDER BY a) FROM t LIMIT 2",
    ],
)
def test_reading_data_and_schema_is_allowed(session, script):
    result = session.query(script)
    assert (result.status, result.error) == (Status.OK, "")


REFUSED_ALWAYS = [
    "ATTACH 'other.db' AS o",
    "ATTACH ':memory:' AS o",
    "DETACH main",
    "VACUUM",
    "VACUUM INTO 'copy.db'",
    "PRAGMA writable_schema = ON",
    "PRAGMA hard_heap_limit = 0",
    "PRAGMA temp_store_directory = '/tmp'",
    "PRAGMA database_list",
    "PRAGMA trusted_schema = ON",
    "PRAGMA journal_mode = WAL",
    "SELECT * FROM pragma_database_list",
    "SELECT load_extension('x')",
    "SELECT fts3_tokenizer('simple')",
    "CREATE VIRTUAL TABLE f USING fts5(x)",
    "CREATE VIRTUAL TABLE temp.d USING dbstat",
    "SELECT * FROM dbstat",
    "SELECT * FROM sqlite_stmt",
]
REFUSED_READING = [
    "DELETE FROM t",
    "UPDATE t SET a = 0",
    "INSERT INTO t VALUES (1, 'x')",
    "REPLACE INTO t VALUES (1, 'x')",
    "DROP TABLE t",
    "DROP VIEW v",
    "ALTER TABLE t RENAME TO u",
    "CREATE TABLE u(x)",
    "CREATE TEMP TABLE u(x)",
    "CREATE TABLE u AS SELECT * FROM t",
    "CREATE INDEX i ON t(a)",
    "CREATE VIEW w AS SELECT 1",
    "CREATE TRIGGER g AFTER INSERT ON t BEGIN SELECT 1; END",
    "REINDEX",
    "ANALYZE",
    "BEGIN; SELECT 1",
    "SAVEPOINT s",
    "WITH x AS (SELECT 1) DELETE FROM t WHERE a IN x RETURNING a",
]


@pytest.mark.parametrize("script", [*REFUSED_ALWAYS, *REFUSED_READING])
def test_a_reading_session_refuses_everything_else(session, script):
    result = session.query(script)
    assert result.status is Status.SECURITY_VIOLATION, result
    assert result.error.startswith("not allowed: ")
    assert session.query("SELECT count(*) FROM t").rows == ((1000,),)


@pytest.mark.parametrize("script", REFUSED_ALWAYS)
def test_a_writable_session_refuses_what_leaves_the_copy(writable, script):
    assert writable.query(script).status is Status.SECURITY_VIOLATION
    assert writable.query("SELECT count(*) FROM t").rows == ((1000,),)


def test_a_writable_session_changes_its_own_copy_only(writable, database):
    before = file_hash(database)
    assert writable.query("DELETE FROM t WHERE a >= 10; DROP VIEW v").status is Status.OK
    trigger = "CREATE TRIGGER g AFTER INSERT ON t BEGIN UPDATE t SET b = CASE WHEN a > 5 THEN 'x' END; SELECT 1; END;"
    assert writable.query(f"{trigger} INSERT INTO t VALUES (99, 'new'); SELECT b FROM t WHERE a = 99").rows == (("x",),)
    assert writable.query("BEGIN; DELETE FROM t; ROLLBACK; SELECT count(*) FROM t").rows == ((11,),)
    assert file_hash(database) == before
    writable.verify()
    with SqlSession(database, open_worker=plain_worker) as fresh:
        assert fresh.query("SELECT count(*) FROM t").rows == ((1000,),)
        assert fresh.query("SELECT * FROM v").status is Status.OK


@pytest.mark.parametrize("script", ["UPDATE sqlite_master SET sql = 'x'", "DELETE FROM sqlite_master"])
def test_a_script_that_writes_to_the_schema_table_fails(session, writable, script):
    for opened in (session, writable):
        assert opened.query(script).status in (Status.RUNTIME_ERROR, Status.SECURITY_VIOLATION)
        assert opened.query("SELECT count(*) FROM sqlite_master WHERE sql = 'x'").rows == ((0,),)


# ---- limits


def test_too_many_rows_are_cut_and_said(database):
    with SqlSession(database, open_worker=plain_worker, max_rows=10) as session:
        result = session.query("SELECT a FROM t ORDER BY a")
        assert (result.status, len(result.rows), result.rows[-1]) == (Status.OUTPUT_LIMIT, 10, (9,))
        assert session.query("SELECT a FROM t LIMIT 10").status is Status.OK


@pytest.mark.parametrize("cell", ["hex(randomblob(5000))", "randomblob(5000)", "printf('%.*c', 5000, '\N{SNOWMAN}')"])
def test_too_many_bytes_are_cut(database, cell):
    with SqlSession(database, open_worker=plain_worker, max_bytes=50_000) as session:
        result = session.query(f"{ENDLESS} SELECT {cell} FROM r")
        assert result.status is Status.OUTPUT_LIMIT
        assert len(result.rows) < 10


def test_a_query_without_end_stops_at_the_limit_and_the_session_lives(database):
    with SqlSession(database, open_worker=plain_worker, limits=Limits(cpu_s=0.5)) as session:
        start = time.process_time()
        for _ in range(2):
            result = session.query(f"{ENDLESS} SELECT count(*) FROM r")
            assert (result.status, result.restarted) == (Status.TIME_LIMIT, False)
        assert session.query("SELECT 1").rows == ((1,),)
        assert time.process_time() - start < 1.0  # the time was spent elsewhere


def test_memory_of_sqlite_is_bounded(database):
    with SqlSession(database, open_worker=plain_worker, limits=Limits(memory_mb=32, cpu_s=20.0)) as session:
        result = session.query(f"{ENDLESS} SELECT count(*) FROM (SELECT hex(randomblob(50000)) AS h FROM r ORDER BY h)")
        assert result.status is Status.MEMORY_LIMIT
        assert session.query("SELECT 1").rows == ((1,),)


def test_statements_are_split_in_linear_time():
    start = time.process_time()
    assert len(statements("SELECT ';';" * 9000)) == 9000
    assert len(statements("'" + ";'" * 25_000)) <= 25_001
    statements("CREATE TRIGGER x BEGIN " + "SELECT 1;" * 10_000)
    statements("/*" * 50_000)
    assert time.process_time() - start < 2.0


# ---- sessions


def test_sessions_want_a_file_and_sensible_bounds(tmp_path, database):
    with pytest.raises(DataError):
        SqlSession(tmp_path / "missing.db", open_worker=plain_worker)
    with pytest.raises(ArgumentError):
        SqlSession(database, max_rows=0, open_worker=plain_worker)


def test_a_template_that_changed_is_noticed(session, database):
    session.verify()
    with sqlite3.connect(database) as connection:
        connection.execute("DELETE FROM t")
    connection.close()
    with pytest.raises(SandboxError, match="template"):
        session.verify()


class Dying:
    """Workers that fail a number of times, then answer."""

    def __init__(self, *answers):
        self.answers, self.opened = list(answers), 0

    def __call__(self, kind, **options):
        self.opened += 1
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def call(self, request, limits=None):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


GOOD = Reply(Result(Status.OK), {"status": "ok", "columns": ["x"], "rows": [[1]], "error": ""})
KILLED = Reply(Result(Status.TIME_LIMIT, reason="more than 2 s of CPU time"))


def test_a_reading_session_survives_the_loss_of_its_sandbox(database):
    workers = Dying(SandboxError("worker is gone"), GOOD, KILLED, GOOD)
    with SqlSession(database, open_worker=workers) as session:
        assert session.query("SELECT 1").rows == ((1,),)
        killed = session.query("SELECT 1")
        assert (killed.status, killed.restarted, killed.columns) == (Status.TIME_LIMIT, True, None)
        assert session.query("SELECT 1").rows == ((1,),)
    assert workers.opened == 3


def test_a_writable_session_does_not_hide_the_loss_of_its_state(database):
    session = SqlSession(database, open_worker=Dying(SandboxError("gone"), GOOD), writable=True)
    with session, pytest.raises(SandboxError):
        session.query("SELECT 1")


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {},
        {"status": "fine", "columns": [], "rows": [], "error": ""},
        {"status": "ok", "columns": None, "rows": [[1]], "error": ""},
        {"status": "ok", "columns": ["a"], "rows": [[1, 2]], "error": ""},
        {"status": "ok", "columns": ["a"], "rows": [[True]], "error": ""},
        {"status": "ok", "columns": ["a"], "rows": [[[1]]], "error": ""},
        {"status": "ok", "columns": ["a"], "rows": [[{"evil": 1}]], "error": ""},
        {"status": "ok", "columns": [1], "rows": [[1]], "error": ""},
    ],
)
def test_a_malformed_answer_is_the_sandboxs_failure(answer):
    with pytest.raises(SandboxError):
        read_answer(answer)
