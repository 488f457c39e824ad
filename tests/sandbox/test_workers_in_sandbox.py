"""Judge, SQL and tools through real sandboxes: attacks of our own, and those of a list that is given from outside.

JAXRL_SANDBOX_ATTACKS names a JSON file with `attacks`, each with id, kind, program and expected_status.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
import sqlite3
import time
from pathlib import Path

import pytest

from jaxrl_agent.errors import SandboxError
from jaxrl_agent.sandbox import probe
from jaxrl_agent.sandbox.asserts import from_assert, from_check
from jaxrl_agent.sandbox.judge import judge_program, judge_programs
from jaxrl_agent.sandbox.results import Limits, Status
from jaxrl_agent.sandbox.sql import SqlSession, file_hash, judge_sql
from jaxrl_agent.sandbox.tools import Instance, Tool, ToolSession

ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r)"
LIMITS = Limits(wall_s=6.0, cpu_s=1.0)
LATE_S = 0.5  # beyond the limit on the clock


@pytest.fixture(scope="module", autouse=True)
def sandbox():
    try:
        return probe()
    except SandboxError as error:
        pytest.skip(f"no sandbox here: {error}")


def given_attacks(kind):
    path = os.environ.get("JAXRL_SANDBOX_ATTACKS")
    attacks = json.loads(Path(path).read_text())["attacks"] if path else []
    found = [pytest.param(attack, id=attack["id"]) for attack in attacks if attack["kind"] == kind]
    return found or [pytest.param(None, marks=pytest.mark.skip(reason="JAXRL_SANDBOX_ATTACKS is not set"), id=kind)]


# ---- judge


def test_both_forms_of_tests_run_in_sandboxes(sandbox):
    verdict = judge_program(
        "print(int(input()) * 2)", [{"input": "21\r\n", "output": "42"}, {"input": "1", "output": "2"}]
    )
    assert (verdict.ok, verdict.tier) == (True, sandbox.tier)
    test = {"entry_point": "f", "args": [3], "expected": 9}
    assert judge_program("def f(n): return n * n", [test]).ok
    assert not judge_program("def f(n): return n + n", [test]).ok


def test_a_test_that_hits_a_limit_leaves_the_next_one_a_fresh_sandbox():
    program = "import sys\nn = int(input())\nwhile n == 0: pass\nif n == 1: print('x' * 5_000_000)\nprint(n)"
    tests = [{"input": f"{n}", "output": f"{n}"} for n in (0, 1, 2)]
    verdict = judge_program(program, tests, limits=Limits(cpu_s=0.5))
    assert [case.status for case in verdict.results] == [Status.TIME_LIMIT, Status.OUTPUT_LIMIT, Status.OK]
    assert (verdict.passed, verdict.could_not_check) == (1, False)


def test_a_checker_runs_where_the_candidate_never_was():
    marker = "import os\ndef f(): open('/tmp/mark', 'w').close(); return os.getcwd()"
    checker = "import os\ndef check(args, value): return type(value) is str and not os.path.exists('/tmp/mark')"
    assert judge_program(marker, [{"entry_point": "f", "args": [], "checker": checker}]).ok


@pytest.mark.parametrize("attack", given_attacks("code"))
def test_given_code_attacks_get_their_verdicts(attack):
    limits = Limits(**{"cpu_s": 2.0, "wall_s": 3.0, **attack.get("limits", {})})
    if "entry_point" in attack:
        test = {"entry_point": attack["entry_point"], "args": attack["args"], "expected": attack["hidden_answer"]}
    else:
        test = {"input": attack["stdin"], "output": attack["hidden_answer"]}
    for _ in range(attack.get("repeat", 1)):
        verdict = judge_program(attack["program"], [test], limits=limits)
        assert verdict.status in attack["expected_status"], verdict
        assert not verdict.could_not_check


# ---- SQL


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "template.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t(a INTEGER, b TEXT)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(n, f"row {n}") for n in range(1000)])
    connection.close()
    return path


def attack_sql(script, database, *, writable, limits=LIMITS):
    """Run a hostile script; whatever it did, the template, its own session and other sessions must still serve."""
    before, files = file_hash(database), sorted(os.listdir(database.parent))
    with SqlSession(database, limits=limits, writable=writable, max_rows=1000, max_bytes=1 << 18) as session:
        start = time.monotonic()
        result = session.query(script)
        assert time.monotonic() - start < limits.wall_limit_s + LATE_S + 1.0  # opening the sandbox is in it
        assert result.wall_s < limits.wall_limit_s + LATE_S
        assert len(result.rows) <= 1000
        assert session.query("SELECT 7").rows == ((7,),)
    with SqlSession(database) as fresh:
        assert fresh.query("SELECT count(*) FROM t").rows == ((1000,),)
    assert file_hash(database) == before
    assert sorted(os.listdir(database.parent)) == files
    return result


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("attack", given_attacks("sql"))
def test_given_sql_attacks_fail(attack, database, writable):
    names = ("/tmp/sbx_attached.db", "/tmp/sbx_vacuum.db")
    result = attack_sql(attack["program"], database, writable=writable)
    assert result.status in attack["expected_status"], result
    assert not any(os.path.exists(name) for name in names)


SQL_ATTACKS = {
    "a count without end": (f"{ENDLESS} SELECT sum(n) FROM r", (Status.TIME_LIMIT,)),
    "rows without end": (f"{ENDLESS} SELECT n FROM r", (Status.OUTPUT_LIMIT,)),
    "one slow operation": (
        "SELECT instr(printf('%.*c', 9000000, 'a'), printf('%.*c', 4500000, 'a') || 'b')",
        (Status.TIME_LIMIT,),
    ),
    "a sort larger than memory": (
        f"{ENDLESS} SELECT count(*) FROM (SELECT hex(randomblob(200000)) AS h FROM r ORDER BY h)",
        (Status.MEMORY_LIMIT, Status.TIME_LIMIT),
    ),
    "files through other names": ("ATTACH 'file:/etc/hostname?mode=ro' AS h", (Status.SECURITY_VIOLATION,)),
    "a copy of everything": ("VACUUM main INTO '/tmp/copy_of_all.db'", (Status.SECURITY_VIOLATION,)),
    "an extension": ("SELECT load_extension('/lib/x86_64-linux-gnu/libc.so.6')", (Status.SECURITY_VIOLATION,)),
    "limits raised": ("PRAGMA hard_heap_limit = 0; SELECT 1", (Status.SECURITY_VIOLATION,)),
    "a result in blobs": ("SELECT zeroblob(9000000), zeroblob(9000000)", (Status.OUTPUT_LIMIT,)),
}


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("name", SQL_ATTACKS)
def test_sql_attacks_fail(name, database, writable):
    script, statuses = SQL_ATTACKS[name]
    assert attack_sql(script, database, writable=writable).status in statuses


def test_what_cannot_be_interrupted_is_killed_and_the_next_query_served(database):
    script, _ = SQL_ATTACKS["one slow operation"]
    assert attack_sql(script, database, writable=False).restarted
    assert not attack_sql(f"{ENDLESS} SELECT count(*) FROM r", database, writable=False).restarted


def test_a_trigger_that_calls_itself_ends(database):
    trigger = "CREATE TRIGGER g AFTER INSERT ON t BEGIN INSERT INTO t SELECT a, b FROM t LIMIT 100; END"
    result = attack_sql(f"{trigger}; INSERT INTO t VALUES (1, 'x'); SELECT count(*) FROM t", database, writable=True)
    assert result.status in (Status.OK, Status.RUNTIME_ERROR, Status.TIME_LIMIT)


def test_a_table_that_grows_without_end_is_stopped(database):
    script = f"CREATE TABLE big(x); {ENDLESS} INSERT INTO big SELECT randomblob(100000) FROM r"
    assert attack_sql(script, database, writable=True).status in (Status.MEMORY_LIMIT, Status.TIME_LIMIT)


def test_queries_are_judged_in_sandboxes(database):
    reference = "SELECT a FROM t WHERE a < 3 ORDER BY a"
    assert judge_sql("SELECT a FROM t WHERE a IN (0, 1, 2) ORDER BY a", reference, database).ok
    assert not judge_sql("SELECT a FROM t WHERE a IN (0, 1, 2) ORDER BY a DESC", reference, database).ok
    assert judge_sql("SELECT 1", "SELECT missing", database).could_not_check


# ---- tools

FOLDERS = b"""
class Folders:
    made = ["home"]

    def __init__(self):
        self.files = {"notes": "hello"}
        self.folder = "/"

    def cat(self, file_name):
        return {"file_content": self.files[file_name]} if file_name in self.files else {"error": "no such file"}

    def cd(self, folder):
        if folder not in self.made:
            return {"error": "no such folder"}
        self.folder += folder
        return {"current_working_directory": self.folder}

    def mkdir(self, dir_name, kept=[]):
        self.made.append(dir_name)
        kept.append(dir_name)
        return "made " + ", ".join(kept)

    def ls(self):
        return " ".join(self.made)

    def spin(self):
        while True:
            pass

    def swell(self):
        return len([bytearray(1 << 20) for _ in range(4000)])

    def leave(self):
        import os
        os._exit(0)
"""


def string_arguments(*names):
    return {"type": "dict", "properties": {name: {"type": "string"} for name in names}, "required": list(names)}


TOOLS = [
    Tool(name, "folders", string_arguments(*arguments))
    for name, arguments in {
        **{"cat": ["file_name"], "cd": ["folder"], "mkdir": ["dir_name"]},
        **{"ls": [], "spin": [], "swell": [], "leave": []},
    }.items()
]


def open_folders(**options):
    return ToolSession({"folders": FOLDERS}, [Instance("folders", "folders", "Folders")], TOOLS, **options)


@functools.cache
def initial_hash():
    with open_folders() as session:
        return session.state_hash()


@pytest.mark.parametrize("attack", given_attacks("tool"))
def test_given_tool_attacks_fail(attack):
    for _ in range(attack.get("repeat", 1)):
        with open_folders() as session:
            assert session.state_hash() == initial_hash()
            assert "sbx_shared" not in session.run([("ls", {})]).results[0].text
            done = session.call(attack["program"])
            assert done.status in attack["expected_status"], done
            assert len(done.results) == len(json.loads(attack["program"]))
            assert not any("root:" in result.text for result in done.results)
            assert session.run([("ls", {})]).status is Status.OK
    assert not os.path.exists("/tmp/sbx_tool_rce")


@pytest.mark.parametrize(
    "name", ["ls.__call__", "(lambda: open('/tmp/tool_was_here', 'w'))", "__init__", "Folders", "LS"]
)
def test_names_that_are_expressions_are_refused(name):
    with open_folders() as session:
        done = session.call(json.dumps([{"name": name, "arguments": {}}, {"name": "ls", "arguments": {}}]))
        assert [result.status for result in done.results] == [Status.SECURITY_VIOLATION, Status.OK]
    assert not os.path.exists("/tmp/tool_was_here")


@pytest.mark.parametrize(
    ("tool", "statuses"), [("spin", {Status.TIME_LIMIT}), ("swell", {Status.MEMORY_LIMIT}), ("leave", set(Status))]
)
def test_a_call_that_takes_the_process_down_ends_its_episode_only(tool, statuses):
    seconds = 0.5 if tool == "spin" else 5.0
    with open_folders(limits=Limits(cpu_s=seconds, wall_s=30.0)) as session, open_folders() as other:
        try:
            done = session.run([("mkdir", {"dir_name": "x"}), (tool, {})])
            assert done.status in statuses - {Status.OK}
            assert not done.alive
        except SandboxError:
            assert tool == "leave"
        with pytest.raises(SandboxError):
            session.run([("ls", {})])
        assert other.run([("ls", {})]).results[0].text == "home"


# ---- reference solutions

NOTHING = "def {0}(*args, **kwargs):\n    pass\n"


def humaneval(folder):
    with gzip.open(folder / "coding" / "HumanEval.jsonl.gz", "rt") as file:
        for task in map(json.loads, file):
            solution = task["prompt"] + task["canonical_solution"]
            tests = from_check(task["test"], entry_point=task["entry_point"], reference=solution)
            yield task["task_id"], solution, NOTHING.format(task["entry_point"]), tests


def mbpp(folder):
    for task in json.loads((folder / "coding" / "mbpp_intercode.json").read_text()):
        loose = task["task_id"] == 414  # its reference gives 0 and 1 where False and True are expected
        tests = [from_assert(text, setup=task["test_setup_code"], by_checker=loose) for text in task["tests"]]
        yield task["task_id"], task["gold"], "pass\n", tests


@pytest.mark.slow
@pytest.mark.parametrize(("source", "count"), [(humaneval, 164), (mbpp, 974)])
def test_every_reference_passes_and_doing_nothing_fails(data_dir, source, count):
    tasks = list(source(data_dir))
    assert len(tasks) == count
    verdicts = judge_programs([(solution, tests) for _, solution, _, tests in tasks])
    failed = {task[0]: verdict for task, verdict in zip(tasks, verdicts, strict=True) if not verdict.ok}
    assert failed == {}
    verdicts = judge_programs([(nothing, tests) for _, _, nothing, tests in tasks], stop_at_first=False)
    passed = [task[0] for task, verdict in zip(tasks, verdicts, strict=True) if verdict.ok or verdict.could_not_check]
    assert passed == []
