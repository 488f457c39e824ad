"""Shell episodes: what carries over, what is left behind, what hostile commands reach."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import platform
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from jaxrl_agent import sandbox
from jaxrl_agent.errors import ArgumentError, SandboxError
from jaxrl_agent.sandbox import Limits, Status, access, bubblewrap
from jaxrl_agent.sandbox.shell import open_shell

MIB = 1 << 20
GIVEN = os.environ.get("JAXRL_SANDBOX_ATTACKS", "")

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="sandboxes need Linux")


@pytest.fixture(scope="module", autouse=True)
def supervisor():
    sandbox.configure()
    return access.connect()


@pytest.fixture
def shell():
    with open_shell() as opened:
        yield opened


def processes_of(pid):
    """Processes of the namespace whose process 1 has this number outside."""
    try:
        wanted = os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return []
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                found += [int(entry)] if os.readlink(f"/proc/{entry}/ns/pid") == wanted else []
            except OSError:
                continue
    return found


def wait_until(true, seconds=3.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "nothing of it in time"
        time.sleep(0.02)


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
    shell.start_service("i=0; while sleep 0.02; do i=$((i+1)); echo $i > /tmp/beat; done", "beat")
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


# ---- hostile commands: (command, accepted statuses, limits); each must return in time and leave nothing behind

HOSTILE = {
    "holds the output and ignores signals": (
        "(trap '' HUP INT TERM; exec sleep 40) & setsid -f sleep 41; nohup sleep 42 & echo shell ended",
        {Status.OK},
        {},
    ),
    "daemonises twice": (
        "python3 -c 'import os,time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\ntime.sleep(9)'",
        {Status.OK},
        {},
    ),
    "ignores every signal that can be": (
        "trap '' HUP INT QUIT TERM USR1 USR2 XCPU PIPE; while :; do sleep 0.2; done",
        {Status.TIME_LIMIT},
        {"wall_s": 0.8},
    ),
    "stops itself": ("kill -STOP $$; echo woken", {Status.TIME_LIMIT}, {"wall_s": 0.5}),
    "reads a terminal that is not there": (
        "read -r x; read -r y < /dev/tty; sleep 9 | cat",
        {Status.TIME_LIMIT},
        {"wall_s": 0.5},
    ),
    "burns processor time in many processes": (
        "for i in 1 2 3 4; do (while :; do :; done) & done; wait",
        {Status.TIME_LIMIT},
        {"cpu_s": 0.5, "wall_s": 10.0},
    ),
    "forks without end": (
        "f() { sleep 3 & f2; }; f2() { sleep 3 & }; for i in $(seq 150); do f; done 2>/dev/null; wait; echo end",
        {Status.OK, Status.RUNTIME_ERROR, Status.TIME_LIMIT},
        {"processes": 24, "wall_s": 1.5},
    ),
    "forks faster than it can be killed": (
        "c() { (c) & exit; }; for i in 1 2 3 4; do (c) & done; sleep 0.3; echo end",
        {Status.OK, Status.RUNTIME_ERROR, Status.TIME_LIMIT},
        {"processes": 32, "wall_s": 1.5, "cpu_s": 4.0},
    ),
    "floods standard output": ("yes flood", {Status.OUTPUT_LIMIT}, {"output_bytes": MIB}),
    "floods standard error from the background": (
        "yes flood >&2 & sleep 5",
        {Status.OUTPUT_LIMIT},
        {"output_bytes": MIB},
    ),
    "takes memory": (
        "python3 -c 'x = [bytearray(1 << 20) for _ in range(400)]; print(len(x))'",
        {Status.MEMORY_LIMIT, Status.RUNTIME_ERROR},
        {"memory_mb": 100},
    ),
    "fills every place": (
        "for d in ~ /tmp /var/tmp /dev/shm / /usr/local /etc; do head -c 90M /dev/zero > $d/fill; done 2>/dev/null; "
        "cat ~/fill /tmp/fill /var/tmp/fill /dev/shm/fill /fill /usr/local/fill /etc/fill | wc -c",
        {Status.OK},
        {"wall_s": 20.0, "cpu_s": 10.0},
    ),
    "makes many files": (
        "mkdir m; (cd m; python3 -c 'for i in range(200000): open(str(i), \"w\")' 2>&1 | tail -1)",
        {Status.OK, Status.TIME_LIMIT, Status.RUNTIME_ERROR},
        {"wall_s": 10.0, "cpu_s": 6.0},
    ),
    "kills everything it can": ("kill -9 -1; kill -9 1; echo survived", {Status.OK, Status.RUNTIME_ERROR}, {}),
    "writes a state of its own": (
        "printf 'junk' >&9; exec 9>&-; trap - EXIT; cd /tmp; true",
        {Status.OK},
        {},
    ),
    "fills the pipe of the state": ("head -c 3000000 /dev/zero >&9; echo full", {Status.OK}, {"wall_s": 5.0}),
}


def play(name):
    """Run one hostile command in an episode of its own: what it gave, and what was seen after it."""
    command, _, limits = HOSTILE[name]
    bounds = Limits(**limits)
    with open_shell(limits=Limits(disk_mb=64)) as shell:
        started = time.monotonic()
        result = shell.run(command, limits=bounds)
        seconds = time.monotonic() - started
        left = [pid for pid in processes_of(shell.info["pid"]) if pid != shell.info["pid"]]
        after = shell.run(
            "rm -rf /app/* ~/* /tmp/* /var/tmp/* /dev/shm/* /fill /etc/fill /usr/local/fill; echo on; pwd"
        )
    return result, seconds, bounds, left, after, processes_of(shell.info["pid"])


@pytest.fixture(scope="module")
def hostile_shells():
    """What came of each hostile command, eight at a time."""
    disk = shutil.disk_usage("/tmp").free
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        outcomes = dict(zip(HOSTILE, pool.map(play, HOSTILE), strict=True))
    return outcomes, disk


@pytest.mark.slow
def test_thirty_two_hostile_episodes_at_once_harm_no_other():
    names = list(HOSTILE) * 2
    with open_shell() as bystander, concurrent.futures.ThreadPoolExecutor(32) as pool:
        playing = [pool.submit(play, name) for name in names]
        while not all(one.done() for one in playing):
            assert bystander.run("echo fine", limits=Limits(wall_s=20.0)).stdout == "fine\n"
            time.sleep(0.2)
    for name, one in zip(names, playing, strict=True):
        result, _, _, left, after, at_end = one.result()
        # Times are not looked at: as many at once as this take longer on few cores.
        assert result.status in HOSTILE[name][1] | {Status.TIME_LIMIT, Status.MEMORY_LIMIT}, (name, result)
        assert (left, at_end) == ([], [])
        assert after.stdout.startswith("on\n"), (name, after)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_command_is_held_and_the_episode_goes_on(hostile_shells, name):
    result, seconds, bounds, left, after, at_end = hostile_shells[0][name]
    assert result.status in HOSTILE[name][1], result
    assert seconds < bounds.wall_limit_s + 1.5
    assert len(result.stdout) + len(result.stderr) <= 2 * bounds.output_bytes
    assert left == [], "processes outlived their command"
    assert after.stdout == "on\n/app\n" or name == "writes a state of its own", after
    assert at_end == []


def test_nothing_of_hostile_commands_is_on_the_host(hostile_shells):
    own = os.getpid()
    assert not list(pathlib.Path("/tmp").glob("*fill*"))
    assert shutil.disk_usage("/tmp").free > hostile_shells[1] - 256 * MIB  # others use the disk too
    with open(f"/proc/{own}/task/{own}/children") as file:
        children = [int(word) for word in file.read().split()]
    for pid in children:
        assert "shell_host" not in pathlib.Path(f"/proc/{pid}/cmdline").read_text()


def test_all_places_together_hold_no_more_than_the_disk_limit(hostile_shells):
    written = int(hostile_shells[0]["fills every place"][0].stdout)
    assert 32 * MIB < written <= 64 * MIB


def test_a_command_returns_at_once_though_its_output_is_still_held(hostile_shells):
    result, seconds, *_ = hostile_shells[0]["holds the output and ignores signals"]
    assert result.stdout == "shell ended\n"
    assert seconds < 1.0 + 0.5  # a busy host


def test_nothing_outside_is_reached():
    unix = f"jaxrl_{secrets.token_hex(6)}"
    secret = pathlib.Path("/var/tmp") / f"jaxrl_secret_{secrets.token_hex(6)}"
    secret.write_text("canary")
    secret.chmod(0o644)
    command = f"""
    unshare -Ur true && echo REACHED user namespace
    unshare -m true && echo REACHED mount namespace
    mount -t tmpfs none /mnt && echo REACHED mount
    chroot / true && echo REACHED chroot
    su -c true </dev/null && echo REACHED su
    cat {secret} && echo REACHED file
    kill -0 {os.getpid()} && echo REACHED process
    (exec 3<>/dev/tcp/127.0.0.1/$PORT) && echo REACHED network
    python3 -c "import socket; socket.socket(socket.AF_UNIX).connect(chr(0) + '{unix}')" && echo REACHED abstract socket
    for f in /root/.ssh /home/*/.ssh /etc/shadow /var/run/docker.sock {pathlib.Path(__file__).parents[2]}; do
      [ -e "$f" ] && echo REACHED "$f"
    done
    cat /proc/1/environ /proc/1/maps && echo REACHED process 1
    ls /proc/1/fd/ && echo REACHED descriptors
    grep -q 'CapEff:.*[1-9a-f]' /proc/self/status && echo REACHED capabilities
    env | grep -i -E 'secret|token|jaxrl'
    echo end
    """
    try:
        with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as abstract:
            abstract.bind("\0" + unix)
            abstract.listen()
            for network in (False, True):
                with open_shell(network=network, env={"PORT": str(tcp.getsockname()[1])}) as shell:
                    assert shell.run(command).stdout == "end\n"
    finally:
        secret.unlink()


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


_AS_USER = """
from jaxrl_agent.sandbox import Limits
from jaxrl_agent.sandbox.shell import open_shell
from jaxrl_agent.sandbox.shell_verify import verify
with open_shell(limits=Limits(processes=24)) as shell:
    shell.start_service("sleep 500", "one")
    bomb = shell.run("for i in $(seq 100); do sleep 3 & done; wait", limits=Limits(processes=24, wall_s=1.0))
    flood = shell.run("yes; yes")
    taken = shell.run("python3 -c 'x = [bytearray(1 << 20) for _ in range(4000)]'", limits=Limits(memory_mb=100))
    rest = shell.run("(setsid sleep 9 &); echo x > /usr/bin/own; cat /usr/bin/own; head -c 90M /dev/zero > a; rm a")
    print(*(result.status for result in (bomb, flood, taken, rest)), rest.stdout, shell.services())
    shell.run("echo 42 > number")
    tests = {"test_a.py": b"def test_a(): assert int(open('/app/number').read()) == 42"}
    verdict = verify(shell.collect(["/app"]), tests)
    print(verdict.ok, verdict.passed)
"""


def test_an_ordinary_user_has_the_same_episodes():
    if os.geteuid() != 0:
        pytest.skip("the other tests have run as an ordinary user already")
    project, bwrap = pathlib.Path(__file__).parents[2], bubblewrap.find()
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    readable = [project / "jaxrl_agent" / "__init__.py", bwrap]
    modern = (
        python and subprocess.run([python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]).returncode == 0
    )
    if not modern or not all(map(bubblewrap.readable_by_others, readable)):
        pytest.skip("an ordinary user can not read a Python 3.11, this project or bubblewrap")
    environment = {"PATH": f"/usr/bin:/bin:{bwrap.parent}", "PYTHONPATH": str(project), "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run(
        [python, "-c", _AS_USER],
        user=65533, group=65533, extra_groups=[], cwd="/", env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    lines = run.stdout.split("\n")
    assert lines[0].split()[1] == "output_limit"
    assert lines[0].split()[0] in ("time_limit", "runtime_error")
    assert lines[0].split()[2] in ("memory_limit", "runtime_error")
    assert lines[0].split()[4] == "x"
    assert lines[1:] == [" ['one']", "True 1", ""]


def given_attacks():
    if not GIVEN:
        return [pytest.param(None, marks=pytest.mark.skip(reason="JAXRL_SANDBOX_ATTACKS names no file"), id="given")]
    attacks = json.loads(pathlib.Path(GIVEN).read_text())["attacks"]
    return [pytest.param(attack, id=attack["id"]) for attack in attacks if attack["kind"] == "shell"]


@pytest.mark.parametrize("attack", given_attacks())
def test_given_shell_attacks_are_held(attack):
    free = shutil.disk_usage("/tmp").free
    limits = Limits(**{"wall_s": 3.0, **attack.get("limits", {})})
    with socket.create_server(("127.0.0.1", 45991)) as listener, open_shell(limits=limits) as shell:
        started = time.monotonic()
        result = shell.run(attack["program"])
        assert time.monotonic() - started < limits.wall_limit_s + 0.5
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
        assert result.status in attack["expected_status"], result
        assert "REACHED" not in result.stdout
        if "hidden_answer" in attack:
            assert result.stdout == attack["hidden_answer"]
        again = shell.run("echo alive")
        assert (again.status, again.stdout) == (Status.OK, "alive\n")
    assert processes_of(shell.info["pid"]) == []
    assert not list(pathlib.Path("/tmp").glob("sbx_*"))
    assert shutil.disk_usage("/tmp").free > free - 256 * MIB
