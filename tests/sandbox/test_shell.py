"""Shell episodes: what carries over, what services are, how they end, what is taken out."""

from __future__ import annotations

import os
import pathlib
import platform
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from jaxrl_agent import sandbox
from jaxrl_agent.errors import ArgumentError, SandboxError
from jaxrl_agent.sandbox import Limits, Status, access
from jaxrl_agent.sandbox.shell import open_shell
from jaxrl_agent.testing.shells import processes_of, wait_until

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="sandboxes need Linux")


@pytest.fixture(scope="module", autouse=True)
def supervisor():
    sandbox.configure()
    return access.connect()


@pytest.fixture
def shell():
    with open_shell() as opened:
        yield opened


# ---- what an episode is


def test_folder_and_exported_variables_carry_over(shell):
    assert (
        shell.run("mkdir -p a/b && cd a/b; export NAME=$'two\\nlines \"x\"' EMPTY=; local_only=1; unset LANG").status
        is Status.OK
    )
    result = shell.run('pwd; printf \'%s|\' "$NAME" "${EMPTY-gone}" "${local_only-gone}" "${LANG-gone}"')
    assert result.stdout == '/app/a/b\ntwo\nlines "x"||gone|gone|'


def test_folder_and_variables_carry_over_however_a_command_ends(shell):
    for at, ending in enumerate(
        ("exit 7", "set -e; false; echo no", "set -u; echo $nothing", "kill -TERM $$; sleep 1")
    ):
        result = shell.run(f"cd /tmp; export KEPT={at}; {ending}")
        assert result.status is Status.RUNTIME_ERROR
        assert shell.run("pwd; echo $KEPT; cd /app").stdout == f"/tmp\n{at}\n"


def test_what_a_command_prints_never_becomes_folder_or_environment(shell):
    forged = r"printf '/etc\0PATH=/nowhere\0end\0'; printf '/etc\0A=1\0end\0' >&2"
    assert shell.run(forged).status is Status.OK
    assert shell.run("pwd; echo ${A-none}").stdout == "/app\nnone\n"


def test_a_killed_command_leaves_folder_and_variables_as_they_were(shell):
    shell.run("cd /tmp; export A=1")
    result = shell.run("cd /; export A=2; sleep 60", limits=Limits(wall_s=0.3))
    assert result.status is Status.TIME_LIMIT
    assert shell.run("pwd; echo $A").stdout == "/tmp\n1\n"


def test_a_folder_that_is_gone_is_no_end(shell):
    shell.run("mkdir x; cd x; rmdir ../x")
    assert shell.run("cd /app && pwd").stdout == "/app\n"


def test_an_environment_of_any_size_is_no_end(shell):
    shell.run("export BIG=$(head -c 3000000 /dev/zero | tr '\\0' x); for i in $(seq 3000); do export V$i=1; done")
    assert shell.run("echo fine").stdout == "fine\n"


def test_standard_input_is_empty_and_there_is_no_terminal(shell):
    result = shell.run("cat; test -t 0 || test -t 1 || echo none; (exec 3<>/dev/tty) 2>/dev/null || echo no tty")
    assert result.stdout == "none\nno tty\n"


def test_programs_that_make_terminals_of_their_own_can(shell):
    program = "import os, pty; print(os.ttyname(pty.openpty()[1])); pty.spawn(['/bin/sh', '-c', 'tty'])"
    result = shell.run(f'python3 -c "{program}"')
    assert set(result.stdout.split()) == {"/dev/pts/0", "/dev/pts/1"}, result


def test_files_are_put_in_place_with_their_modes(tmp_path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "inner.txt").write_text("inner")
    files = {"a.bin": b"\0\xff", "run.sh": (b"#!/bin/bash\necho ran\n", 0o755), "/data/t": str(tmp_path / "tree")}
    with open_shell(files=files) as shell:
        result = shell.run("./run.sh; od -An -tx1 a.bin; cat /data/t/inner.txt")
    assert result.stdout == "ran\n 00 ff\ninner"


def test_everything_may_be_written_and_the_host_sees_nothing(shell):
    name = f"sbx_{secrets.token_hex(8)}"
    places = ["/usr/bin", "/usr/local/bin", "/etc", "/root", "/opt", "/var/lib", "/tmp", "/home/user", "/"]
    command = "".join(f"echo x > {place}/{name} && echo ok; " for place in places) + "rm /usr/bin/env && echo removed"
    assert shell.run(command).stdout == "ok\n" * len(places) + "removed\n"
    assert not any(os.path.lexists(f"{place}/{name}") for place in places)
    assert os.path.exists("/usr/bin/env")
    assert shell.run(f"/usr/bin/env; ls /usr/bin/{name}").exit_code == 0


def test_a_prepared_root_is_written_over_and_never_changed():
    root = pathlib.Path("/var/tmp") / f"jaxrl_root_{secrets.token_hex(4)}"
    try:
        small_root(root)
        (root / "srv").mkdir()
        (root / "srv" / "own.txt").write_text("of the root\n")
        with open_shell(root) as shell:
            result = shell.run(
                "cat /srv/own.txt; echo new > /srv/new.txt; rm /srv/own.txt; ls /srv; ls /usr/bin/gcc 2>&1"
            )
        assert result.stdout.startswith("of the root\nnew.txt\n"), result
        assert "No such file" in result.stdout
        assert [path.name for path in (root / "srv").iterdir()] == ["own.txt"]
    finally:
        shutil.rmtree(root, ignore_errors=True)


def small_root(root):
    """Lay a root of bash, ls, cat and the system's interpreter, with the libraries that they need."""
    interpreter = os.path.realpath("/usr/bin/python3")
    modules = pathlib.Path("/usr/lib") / os.path.basename(interpreter)
    if not (os.path.islink("/lib") and modules.is_dir()):
        pytest.skip("the host has no merged /usr with an interpreter of its own")
    root.mkdir()
    for name in ("bin", "sbin", "lib", "lib64"):
        if os.path.islink(f"/{name}"):
            (root / name).symlink_to(os.readlink(f"/{name}"))
    left_out = shutil.ignore_patterns(
        "test*", "__pycache__", "config-*", "idlelib", "ensurepip", "lib2to3", "pydoc_data"
    )
    shutil.copytree(modules, root / "usr/lib" / modules.name, ignore=left_out)
    wanted = [
        interpreter,
        "/usr/bin/bash",
        "/usr/bin/cat",
        "/usr/bin/ls",
        *map(str, modules.glob("lib-dynload/_ctypes.*")),
    ]
    needed = subprocess.run(["ldd", *wanted], capture_output=True, text=True).stdout.split()
    for path in {*wanted, *(word for word in needed if word.startswith("/") and os.path.isfile(word))}:
        place = root / "usr" / path.lstrip("/").removeprefix("usr/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    (root / "usr/bin/python3").symlink_to(os.path.basename(interpreter))


# ---- services


def test_a_service_outlives_commands_until_it_is_stopped(shell):
    # Each beat is moved into place: one that is written there can be read when it is still empty.
    beat = "i=0; cd /tmp; while sleep 0.02; do i=$((i+1)); echo $i > next; mv next beat; done"
    shell.start_service(beat, "beat")
    assert shell.services() == ["beat"]
    wait_until(lambda: shell.run("cat /tmp/beat").exit_code == 0)
    first = int(shell.run("sleep 0.1; cat /tmp/beat").stdout)
    assert int(shell.run("sleep 0.1; cat /tmp/beat").stdout) > first
    shell.stop_service("beat")
    assert shell.services() == []
    last = shell.run("cat /tmp/beat").stdout
    assert shell.run("sleep 0.1; cat /tmp/beat").stdout == last


def test_orphans_of_a_command_die_and_orphans_of_a_service_live(shell):
    shell.start_service("(setsid sh -c 'echo started; exec sleep 300' &) ; sleep 0.05", "one")
    wait_until(lambda: "started" in shell.run("cat /var/log/services/one.log").stdout)
    shell.run("(setsid sleep 301 &); (setsid sh -c 'sleep 302 & sleep 303' &) ; disown -a")
    result = shell.run("ps -eo args | grep '[s]leep 30'")
    assert result.stdout == "sleep 300\n"
    assert shell.run("kill $(pgrep -f 'sleep 300')").exit_code == 0
    wait_until(lambda: shell.services() == [])


def test_without_proc_orphans_die_and_services_live_all_the_same():
    with open_shell(proc=False) as shell:
        shell.start_service("(setsid sleep 400 &); exec sleep 401", "one")
        wait_until(lambda: len(processes_of(shell.info["pid"])) == 4)  # process 1, the service's keeper, two sleeps
        shell.run("(setsid sleep 402 &); (setsid sh -c 'sleep 403 & sleep 404' &); sleep 405 &")
        assert len(processes_of(shell.info["pid"])) == 4
        assert shell.run("ls /proc; cd /tmp; export A=1").stdout == ""
        assert shell.run("pwd; echo $A").stdout == "/tmp\n1\n"


def test_a_command_that_forks_too_fast_takes_services_with_it_rather_than_go_on():
    with open_shell(limits=Limits(processes=40)) as shell:
        shell.start_service("exec sleep 500", "one")
        result = shell.run("c() { (c) & exit; }; for i in 1 2 3 4 5 6; do (c) & done; sleep 0.3; echo end")
        left = [pid for pid in processes_of(shell.info["pid"]) if pid != shell.info["pid"]]
        running = shell.services()
        assert len(left) == (2 if running else 0), (left, result)  # a service and its keeper
        assert running or "services ended too: one" in result.reason
        assert shell.run("echo on").stdout == "on\n"


def test_a_server_on_the_loopback_device_serves_later_commands():
    with open_shell(network=True, files={"page": b"hello"}) as shell:
        shell.start_service("python3 -m http.server 8000 --bind 127.0.0.1", "web")
        fetch = (
            "python3 -c \"import urllib.request as r; print(r.urlopen('http://127.0.0.1:8000/page').read().decode())\""
        )
        wait_until(lambda: shell.run(fetch).stdout == "hello\n", seconds=10)


def test_the_name_of_a_service_can_not_be_taken_twice_or_be_a_path(shell):
    shell.start_service("sleep 60", "a")
    with pytest.raises(SandboxError, match="runs"):
        shell.start_service("sleep 60", "a")
    with pytest.raises(ArgumentError, match="name"):
        shell.start_service("true", "../x")
    with pytest.raises(SandboxError, match="no service"):
        shell.stop_service("b")
    assert shell.run("echo on").stdout == "on\n"


# ---- ends


def test_a_shell_leaves_no_descriptor_process_or_folder():
    with open_shell() as shell:
        shell.run("true")
    before = sorted(os.listdir("/proc/self/fd")), threading.active_count()
    own_folders = f"jaxrl_sandbox-{os.getpid()}-*"
    folders = set(pathlib.Path(tempfile.gettempdir()).glob(own_folders))
    for _ in range(3):
        with open_shell() as shell:
            shell.run("sleep 60 &")
            pid = shell.info["pid"]
        assert processes_of(pid) == []
    assert (sorted(os.listdir("/proc/self/fd")), threading.active_count()) == before
    assert set(pathlib.Path(tempfile.gettempdir()).glob(own_folders)) == folders


def test_an_episode_dies_with_the_process_that_opened_it_and_with_its_keeper():
    program = (
        "import os, sys, time\nfrom jaxrl_agent.sandbox.shell import open_shell\n"
        "shell = open_shell()\nshell.start_service('sleep 300', 'a')\n"
        "print(shell.info['pid'], shell._link._process.pid, flush=True)\ntime.sleep(60)"
    )
    root = str(pathlib.Path(__file__).parents[2])
    for whom in ("caller", "keeper"):
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=root)
        inner, keeper = map(int, process.stdout.readline().split())
        wait_until(lambda inner=inner: len(processes_of(inner)) >= 3)
        os.kill(process.pid if whom == "caller" else keeper, signal.SIGKILL)
        wait_until(lambda inner=inner: processes_of(inner) == [], seconds=5)
        process.kill()
        process.wait()
        process.stdout.close()


def test_an_episode_ends_when_its_time_is_over():
    with open_shell(lifetime_s=0.7) as shell:
        shell.start_service("sleep 300", "a")
        wait_until(lambda: processes_of(shell.info["pid"]) == [], seconds=5)
        with pytest.raises(SandboxError):
            shell.run("true")


def test_an_answer_that_nobody_waited_for_is_no_answer_to_the_next_request():
    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with open_shell() as shell:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(Alarm):
                shell.run("sleep 0.5; echo first")
            time.sleep(0.6)
            with pytest.raises(SandboxError, match="no answer to the request before"):
                shell.run("echo second")
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_fork_of_the_caller_does_not_hold_up_the_end():
    shell = open_shell()
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    try:
        started = time.monotonic()
        shell.close()
        assert time.monotonic() - started < 5.0
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_closed_shell_says_so(shell):
    shell.close()
    shell.close()
    with pytest.raises(SandboxError, match="closed"):
        shell.run("true")


# ---- files out


def test_only_regular_files_are_collected_and_never_through_a_link(shell):
    shell.run(
        "mkdir -p d/e; echo one > d/one; echo two > d/e/two; chmod 755 d/one; ln -s /etc/passwd d/link; ln -s e d/f; "
        "mkfifo d/pipe; truncate -s 20M d/sparse; ln d/one d/hard; echo secret > /tmp/s; ln -s /tmp /app/t; sleep 60 &"
    )
    shell.start_service("while :; do echo x >> /app/d/growing; sleep 0.01; done", "writer")
    collected = shell.collect(["d", "/etc/passwd", "t/s", "missing", "/proc/self/environ", "/dev/null", "d/f/two"])
    growing = collected.pop("/app/d/growing", b"")
    assert set(growing) <= set(b"x\n")
    assert collected.pop("/etc/passwd").startswith(b"root:")
    assert collected == {"/app/d/one": b"one\n", "/app/d/e/two": b"two\n", "/app/d/hard": b"one\n"}
    assert collected.modes["/app/d/one"] == 0o755
    refused = {
        "/app/d/link",
        "/app/d/f",
        "/app/d/pipe",
        "/app/d/sparse",
        "/app/t/s",
        "/app/missing",
        "/proc/self/environ",
    }
    assert refused | {"/dev/null", "/app/d/f/two"} == set(collected.refused)
    assert collected.refused["/app/d/sparse"] == "too large"
    assert [pid for pid in processes_of(shell.info["pid"]) if pid != shell.info["pid"]] == []
    assert shell.services() == []


def test_what_is_collected_is_bounded(shell):
    shell.run("mkdir m; for i in $(seq 30); do head -c 1000 /dev/zero > m/$i; done")
    assert len(shell.collect(["m"], files=10)) == 10
    assert sum(map(len, shell.collect(["m"], total_bytes=5500).values())) == 5000
    assert shell.collect(["m"], file_bytes=999) == {}
    shell.run("d=deep; for i in $(seq 40); do d=$d/x; done; mkdir -p $d; echo x > $d/file")
    assert "too deep" in shell.collect(["deep"]).refused.values()


def test_a_path_that_leads_elsewhere_is_refused(shell):
    for path in ("../x", "a/../../b", "", "/", "a\0b"):
        with pytest.raises(ArgumentError):
            shell.collect([path])


def test_bytes_that_are_no_text_pass_both_ways(shell):
    assert shell.run("printf '\\xff\\xfe' > 'b\xe9\u2028 x'; printf '\\xff'; echo héé").stdout == "\ufffdhéé\n"
    assert shell.collect(["/app"])["/app/b\xe9\u2028 x"] == b"\xff\xfe"


# ---- refusals


def test_weaker_tiers_are_refused(monkeypatch):
    client = access.connect()
    for tier in ("lsm", "none"):
        monkeypatch.setattr(client, "tier", tier)
        with pytest.raises(SandboxError, match="tier ns"):
            open_shell()


def test_arguments_that_make_no_sense_are_refused(tmp_path, shell):
    for bad in ({"workdir": "/a/../b"}, {"env": {"A B": "x"}}, {"root": tmp_path}, {"files": {"../a": b""}}):
        with pytest.raises(ArgumentError):
            open_shell(**bad)
    with pytest.raises(ArgumentError, match="exist"):
        open_shell(files={"a": tmp_path / "missing"})
    with pytest.raises(ArgumentError, match="NUL"):
        shell.run("a\0b")
