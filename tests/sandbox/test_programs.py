"""What a program finds in a sandbox, and what its result says: the ordinary cases."""

from __future__ import annotations

import asyncio
import pathlib
import signal

import pytest

from jaxrl_agent import sandbox
from jaxrl_agent.errors import ArgumentError
from jaxrl_agent.sandbox import Limits, Status, bubblewrap


@pytest.fixture(scope="module", autouse=True)
def fresh_supervisor():
    sandbox.configure()
    yield
    sandbox.configure()


def outcome(program, **options):
    result = sandbox.run_program(program, **options)
    return result.status, result.stdout


def test_a_result_says_what_a_run_used():
    result = sandbox.run_program("x = bytearray(b'x') * (100 << 20)\nfor i in range(10**6): pass\nprint(len(x))")
    assert (result.status, result.stdout, result.stderr) == (Status.OK, "104857600\n", "")
    assert (result.exit_code, result.signal, result.truncated, result.reason) == (0, None, False, "")
    assert result.tier == "ns"
    assert 0.0 < result.cpu_s < 2.0
    assert 0.0 < result.wall_s < 7.0
    assert 100 << 20 < result.peak_mem_bytes < 200 << 20


def test_a_program_is_main_with_its_arguments_and_files(tmp_path: pathlib.Path):
    outside = tmp_path / "table.csv"
    outside.write_text("1,2\n")
    program = """
import os, sys
import helper
assert __name__ == "__main__" and sys.modules["__main__"].helper is helper
print(sys.argv[1:], os.getcwd(), helper.VALUE, open("data/table.csv").read().strip(), sorted(os.listdir(".")))
"""
    files = {"helper.py": b"VALUE = 7", "data/table.csv": outside}
    status, stdout = outcome(program, args=["a", "b c"], files=files)
    assert status is Status.OK
    names = "['__pycache__', 'data', 'helper.py', 'main.py']"
    assert stdout == f"['a', 'b c'] /tmp/box 7 1,2 {names}\n"


def test_a_file_larger_than_the_disk_is_bound_instead_of_copied(tmp_path: pathlib.Path):
    large = tmp_path / "large"
    with open(large, "wb") as file:
        file.truncate(80 << 20)
    if not bubblewrap.readable_by_others(large):
        # pytest's folders are private, and slot users must reach what is bound.
        for folder in (large, *list(large.parents)[:-2]):
            folder.chmod(0o755)
    status, stdout = outcome("import os\nprint(os.path.getsize('/files/large'))", files={"large": large})
    assert (status, stdout) == (Status.OK, f"{80 << 20}\n")


@pytest.mark.parametrize(
    "program",
    [
        "print(sum(map(int, open(0))))",
        "print(sum(map(int, open('/dev/stdin'))))",
        "import sys\nprint(sum(int(line) for line in sys.stdin))",
        "import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())))",
        "import os\nprint(sum(map(int, os.read(0, 1000).split())))",
        "print(int(input()) + int(input()))",
        "import sys\nsys.stdout.buffer.write(str(int(input()) + int(input())).encode() + b'\\n')",
        "import subprocess, sys\nsys.stdout.write(subprocess.run(['/bin/sh', '-c', 'read a; read b; echo $((a+b))'],"
        " stdout=-1, text=True).stdout)",
        "import atexit, threading\ns = int(input()) + int(input())\natexit.register(print, s)\n"
        "threading.Thread(target=lambda: None).start()",
        "import threading, time\ns = int(input()) + int(input())\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print(s))).start()",
        "from multiprocessing import Process\nif __name__ == '__main__':\n    s = int(input()) + int(input())\n"
        "    p = Process(target=print, args=(s,)); p.start(); p.join()",
        "from concurrent.futures import ThreadPoolExecutor\n"
        "print(sum(ThreadPoolExecutor(16).map(int, [input(), input()])))",
        "import sys\nsys.setrecursionlimit(10**6)\nf = lambda n: n and 1 + f(n - 1)\nprint(f(20000) - 20000 + 5)",
    ],
)
def test_input_and_output_work_in_every_usual_way(program):
    assert outcome(program, stdin="2\n3\n") == (Status.OK, "5\n")


def test_long_input_may_stay_unread_and_may_be_read():
    text = "x" * 5_000_000
    assert outcome("print('done')", stdin=text) == (Status.OK, "done\n")
    assert outcome("import sys\nprint(len(sys.stdin.read()))", stdin=text) == (Status.OK, "5000000\n")


@pytest.mark.parametrize(
    ("program", "code"),
    [("exit()", 0), ("exit(3)", 3), ("exit('no')", 1), ("1/0", 1), ("exit(256+4)", 4),
     ("import os\nos._exit(5)", 5), ("def", 1)],
)  # fmt: skip
def test_exit_codes_are_the_interpreters(program, code):
    result = sandbox.run_program(program)
    assert (result.exit_code, result.signal) == (code, None)
    assert result.status is (Status.RUNTIME_ERROR if code else Status.OK)


def test_an_uncaught_exception_shows_the_programs_lines_alone():
    result = sandbox.run_program("def f(x):\n    return 1 / x\n\nf(0)\n")
    assert result.stderr.splitlines()[0] == "Traceback (most recent call last):"
    assert "    return 1 / x" in result.stderr
    assert result.reason == "ZeroDivisionError: division by zero"
    assert "runner" not in result.stderr
    assert "code_child" not in result.stderr


def test_a_signal_is_named():
    result = sandbox.run_program("import os\nos.kill(os.getpid(), 15)")
    assert (result.status, result.signal, result.exit_code) == (Status.RUNTIME_ERROR, signal.SIGTERM, None)
    assert "SIGTERM" in result.reason


def test_bytes_that_are_no_text_are_replaced():
    assert outcome("import os\nos.write(1, b'a\\xff\\xfeb')") == (Status.OK, "a\ufffd\ufffdb")


def test_output_up_to_the_limit_is_kept_whole_and_one_byte_more_is_too_much():
    limits = Limits(output_bytes=1000)
    exact = sandbox.run_program("print('x' * 999)", limits=limits)
    assert (exact.status, len(exact.stdout), exact.truncated) == (Status.OK, 1000, False)
    over = sandbox.run_program("print('x' * 1000)", limits=limits)
    assert (over.status, len(over.stdout), over.truncated) == (Status.OUTPUT_LIMIT, 1000, True)


@pytest.mark.parametrize("program", ["x = bytearray(1 << 30)", "import mmap\nmmap.mmap(-1, 1 << 30)"])
def test_what_an_interpreter_says_about_memory_is_the_memory_limits(program):
    result = sandbox.run_program(program, limits=Limits(memory_mb=128))
    assert result.status is Status.MEMORY_LIMIT
    assert result.exit_code == 1


def test_cpu_time_decides_even_if_a_program_ends_by_itself_between_two_looks():
    program = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass\nprint(1)"
    assert outcome(program, limits=Limits(cpu_s=0.1, wall_s=5.0))[0] is Status.TIME_LIMIT
    assert outcome(program, limits=Limits(cpu_s=1.0, wall_s=5.0))[0] is Status.OK


def test_sleep_costs_no_cpu_time():
    assert outcome("import time\ntime.sleep(0.4)\nprint(1)", limits=Limits(cpu_s=0.2, wall_s=5.0)) == (Status.OK, "1\n")


def test_the_environment_is_the_sandboxes_own(monkeypatch):
    monkeypatch.setenv("JAXRL_SECRET", "token")
    status, stdout = outcome("import os\nprint(sorted(os.environ))")
    assert status is Status.OK
    assert "JAXRL_SECRET" not in stdout
    assert set(eval(stdout)) <= {"HOME", "LANG", "LC_CTYPE", "PATH", "PWD", "TMPDIR"}


def test_many_programs_come_back_in_order():
    jobs = [f"print({number})" for number in range(20)] + [{"program": "print(input())", "stdin": "last"}]
    results = sandbox.run_programs(jobs, limits=Limits(cpu_s=1.0))
    assert [result.stdout for result in results] == [*(f"{number}\n" for number in range(20)), "last\n"]


def test_programs_run_side_by_side_in_an_event_loop():
    async def many():
        return await asyncio.gather(*(sandbox.arun_program(f"print({number} ** 2)") for number in range(6)))

    assert [result.stdout for result in asyncio.run(many())] == ["0\n", "1\n", "4\n", "9\n", "16\n", "25\n"]


def test_giving_up_on_a_program_harms_no_other():
    async def impatient():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sandbox.arun_program("import time\ntime.sleep(0.6)"), 0.2)
        await asyncio.sleep(0.6)
        return await asyncio.wait_for(sandbox.arun_program("print(42)"), 10.0)

    assert asyncio.run(impatient()).stdout == "42\n"


def test_a_full_queue_makes_callers_wait_and_loses_nothing():
    sandbox.configure(queue=2)
    assert [result.stdout for result in sandbox.run_programs(["print(1)"] * 12)] == ["1\n"] * 12

    async def many():
        return await asyncio.gather(*(sandbox.arun_program("print(2)") for _ in range(6)))

    assert [result.stdout for result in asyncio.run(many())] == ["2\n"] * 6


@pytest.mark.parametrize(
    "arguments",
    [
        {"program": b"print(1)"},
        {"program": "", "stdin": None},
        {"program": "", "args": "words"},
        {"program": "", "args": [1]},
        {"program": "", "files": {"../x": b""}},
        {"program": "", "files": {"/etc/x": b""}},
        {"program": "", "files": {"a//b": b""}},
        {"program": "", "files": {"gone": "/no/such/file"}},
    ],
)
def test_arguments_that_can_not_be_meant_are_refused(arguments):
    with pytest.raises(ArgumentError):
        sandbox.run_program(**arguments)


@pytest.mark.parametrize(
    "limits",
    [{"cpu_s": 0}, {"cpu_s": float("nan")}, {"wall_s": -1.0}, {"memory_mb": 4}, {"memory_mb": 64.0},
     {"processes": True}, {"output_bytes": 0}, {"open_files": 3}],
)  # fmt: skip
def test_limits_that_limit_nothing_are_refused(limits):
    with pytest.raises(ArgumentError):
        Limits(**limits)


def test_the_clock_gets_three_times_the_cpu_time_and_a_second_by_default():
    assert Limits(cpu_s=2.0).wall_limit_s == 7.0
    assert Limits(cpu_s=2.0, wall_s=3.0).wall_limit_s == 3.0


def test_sets_and_hashes_come_out_alike_in_every_run():
    program = "import sys\nprint({'red', 'green', 'blue', 'cyan', 'pink'}, hash('x'), '' in sys.path)"
    first, second = (outcome(program) for _ in range(2))
    assert first == second
    assert first[0] is Status.OK
    assert first[1].endswith("False\n")
