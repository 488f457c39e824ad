"""Start one sandbox and hold what the supervisor needs to steer, measure and end it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import resource
import shutil
import signal
import socket
import time
import traceback

from jaxrl_agent.errors import SandboxError
from jaxrl_agent.sandbox import bubblewrap, leftovers, memory, seccomp
from jaxrl_agent.sandbox.bubblewrap import Profile

SLOT_UIDS, MOST_SLOTS, _UID_BLOCKS = 61000, 256, 16
_INSIDE = pathlib.Path(__file__).parent / "inside"
_MODULES = ("landlock", "code_child", "handler_child", "runner")
_CONTROL, _BUNDLE, _SECCOMP, _INFO = 3, 4, 5, 6
_STACK_BYTES = 8 << 20
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def sealed_file(data: bytes) -> int:
    """Give a descriptor of an anonymous file that holds `data` and can not be changed, at its start."""
    fd = os.memfd_create("jaxrl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return fd


class Sandbox:
    """One sandbox, from its launch to the end of its last process.

    Attributes:
        monitor: the supervisor's child: bubblewrap, or process 1 itself where there is no namespace.
        control: where orders go and events come from.
        pidfd: of process 1, once it is ready; readable when no process of its namespace is left.
        base_bytes: address space of process 1 before it has served anything.
        owner: the session that it serves.
    """

    def __init__(self, *, slot: int, profile: Profile, monitor: int, control: socket.socket, info: int, log: int):
        self.slot, self.profile, self.monitor, self.control = slot, profile, monitor, control
        self._info, self._log = info, log
        self.meter: memory.ProcessMeter | memory.CgroupMeter = memory.ProcessMeter()
        self.scratch: str | None = None
        self.pid, self.pidfd, self.base_bytes = 0, -1, 0
        self.ready = self.killed = self.dead = self.reaped = False
        self.owner = None
        self.started = time.monotonic()

    def became_ready(self, *, namespaced: bool) -> None:
        """Learn process 1's number and what it weighs."""
        self.pid = json.loads(os.read(self._info, 4096))["child-pid"] if namespaced else self.monitor
        self.pidfd = os.pidfd_open(self.pid)
        self.meter.watch(self.pid)
        self.base_bytes = memory.address_space_bytes(self.pid)
        self.ready = True

    def order(self, name: str, value: dict, fds: list[int]) -> None:
        """Send an order; the descriptors are closed here."""
        text = sealed_file(json.dumps(value).encode())
        try:
            socket.send_fds(self.control, [name.encode()], [text, *fds])
        except OSError:
            # It is dying; its end is reported by itself.
            self.kill()
        finally:
            for fd in (text, *fds):
                os.close(fd)

    def kill(self) -> None:
        """Kill process 1, and with it every process of its namespace."""
        self.killed = True
        with contextlib.suppress(ProcessLookupError):
            if self.pidfd >= 0:
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            elif not self.reaped:
                os.kill(self.monitor, signal.SIGKILL)

    def note(self, text: str) -> None:
        """Add a line to what `log_text` gives."""
        os.write(self._log, text.encode())

    def log_text(self) -> str:
        """Give what bubblewrap and process 1 said on standard error."""
        size = min(os.fstat(self._log).st_size, 2000)
        return os.pread(self._log, size, 0).decode(errors="replace").strip()

    def writable_usage(self) -> tuple[int, int]:
        """Give bytes and files of the writable file system; zeros where it can not be seen."""
        if self.scratch is not None or not self.pid:
            return 0, 0
        try:
            state = os.statvfs(f"/proc/{self.pid}/root/tmp")
        except OSError:
            return 0, 0
        return (state.f_blocks - state.f_bfree) * state.f_frsize, state.f_files - state.f_ffree

    def release(self) -> None:
        """Close descriptors and remove what lies outside; every process must be gone."""
        self.control.close()
        for fd in (self._info, self._log, self.pidfd):
            if fd >= 0:
                os.close(fd)
        self._info = self._log = self.pidfd = -1
        self.meter.remove()
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)


class Launcher:
    """Starts sandboxes of one tier.

    Args:
        tier: "ns", "lsm" or "none".
        bwrap: path of bubblewrap, for tier "ns".
        run_folder: where bubblewrap is copied if slot users can not reach it, and where tiers without a mount
            namespace keep their scratch folders.
        cgroups: whether cgroups may be used.
    """

    def __init__(self, *, tier: str, bwrap: str, run_folder: str, cgroups: bool = True):
        self.tier, self._folder = tier, run_folder
        # Supervisors of one host rarely share slot users; where they do, namespaces still keep them apart.
        self._uid_base = SLOT_UIDS + os.getpid() % _UID_BLOCKS * MOST_SLOTS
        self.as_root, self._owner = os.geteuid() == 0, os.getpid()
        self.meters = memory.Meters(cgroups=cgroups)
        self.interpreter, self._prefix = bubblewrap.find_interpreter()
        if self.as_root and self._prefix is not None and not bubblewrap.readable_by_others(self._prefix):
            remedy = f"Install Python 3.9 or newer as {bubblewrap.SYSTEM_PYTHON}, or start as an ordinary user."
            raise SandboxError("slot users must be able to read the interpreter", value=self._prefix, remedy=remedy)
        self.bwrap = str(self._reachable(pathlib.Path(bwrap))) if tier == "ns" else ""
        self._bootstrap = (_INSIDE / "bootstrap.py").read_text()
        self._bundle = sealed_file(json.dumps(self._files()).encode())
        # Since 5.14 processes are counted for each user namespace; before, for the user on the whole host.
        kernel = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
        self.counts_processes = self.as_root or (tier == "ns" and kernel >= (5, 14))

    def launch(self, slot: int, profile: Profile) -> Sandbox:
        """Start a sandbox; it announces itself on `control` when it is ready."""
        with contextlib.ExitStack() as kept, contextlib.ExitStack() as given:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            kept.callback(ours.close)
            given.callback(theirs.close)
            info, info_write = os.pipe()
            kept.callback(os.close, info)
            given.callback(os.close, info_write)
            log = os.memfd_create("jaxrl-log", os.MFD_CLOEXEC)
            kept.callback(os.close, log)
            calls = seccomp.assemble(sockets=profile.sockets, shared_memory=self.meters.enforced)
            filter_fd = sealed_file(calls)
            given.callback(os.close, filter_fd)
            meter = self.meters.make()
            kept.callback(meter.remove)
            uid, gid = (self._uid_base + slot,) * 2 if self.as_root else (os.getuid(), os.getgid())
            scratch = self._scratch(slot, uid)
            monitor = os.fork()
            if monitor == 0:
                try:
                    files = {_CONTROL: theirs.fileno(), _BUNDLE: self._bundle, _SECCOMP: filter_fd, _INFO: info_write}
                    self._become(self._command(profile, uid, gid, scratch), uid, gid, files, log, meter.joins)
                except BaseException:
                    os.write(2, traceback.format_exc().encode())
                finally:
                    os._exit(126)
            kept.pop_all()
        ours.setblocking(False)
        box = Sandbox(slot=slot, profile=profile, monitor=monitor, control=ours, info=info, log=log)
        box.meter, box.scratch = meter, scratch
        return box

    def _files(self) -> dict:
        modules = {name: (_INSIDE / f"{name}.py").read_text() for name in _MODULES}
        readable = ["/usr", "/lib", "/lib64", "/bin", "/dev/null", "/dev/urandom", "/dev/random"]
        readable += ["/dev/zero"] * self.meters.enforced
        if self._prefix is not None:
            readable.append(self._prefix)
        calls = seccomp.assemble(shared_memory=self.meters.enforced)
        filtered = calls.hex() if self.tier == "lsm" else ""
        return {"modules": modules, "readable": readable, "seccomp": filtered}

    def _command(self, profile: Profile, uid: int, gid: int, scratch: str | None) -> list[str]:
        python = [self.interpreter, "-s", "-S", "-c", self._bootstrap, str(_CONTROL), str(_BUNDLE), self.tier]
        if self.tier != "ns":
            return [*python, str(scratch)]
        if self._prefix is not None:
            shown = (*profile.binds, (self._prefix, self._prefix))
            profile = Profile(disk_mb=profile.disk_mb, sockets=profile.sockets, binds=shown)
        fixed = {"seccomp_fd": _SECCOMP, "info_fd": _INFO, "shared_memory": self.meters.enforced}
        return bubblewrap.command_line(self.bwrap, profile, [*python, "/tmp"], uid=uid, gid=gid, **fixed)

    def _become(self, command: list[str], uid: int, gid: int, files: dict[int, int], log: int, joins) -> None:
        """Turn this fork into the command: descriptors, cgroup, user and limits, in this order."""
        os.dup2(log, 2)
        high = {number: fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for number, fd in files.items()}
        null = os.open("/dev/null", os.O_RDWR)
        for number in (0, 1):
            os.dup2(null, number)
        for number, fd in high.items():
            os.dup2(fd, number, inheritable=True)
        os.closerange(max(files) + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        for path in joins:
            with open(path, "w") as file:
                file.write("0")
        if self.as_root:
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
        os.umask(0o022)
        for number, value in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_STACK, _STACK_BYTES)):
            hard = resource.getrlimit(number)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(number, (value, value))
        # The name shows whose it is: a bubblewrap whose parent dies at a bad moment waits for ever and must be found.
        os.execve(command[0], [leftovers.mark(self._owner), *command[1:]], bubblewrap.python_environment())

    def _reachable(self, bwrap: pathlib.Path) -> pathlib.Path:
        """Give bubblewrap where slot users can run it, copied with the library beside it if need be."""
        if not self.as_root or bubblewrap.readable_by_others(bwrap):
            return bwrap
        package = bwrap.resolve().parent.parent
        target = pathlib.Path(self._folder) / package.name
        shutil.copytree(package, target)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, target.with_name(libraries.name))
        return target / "_bin" / bwrap.name

    def _scratch(self, slot: int, uid: int) -> str | None:
        if self.tier == "ns":
            return None
        path = os.path.join(self._folder, f"slot-{slot}-{time.monotonic_ns()}")
        os.mkdir(path, 0o700)
        if self.as_root:
            os.chown(path, uid, uid)
        return path
