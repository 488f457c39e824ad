"""Process 1 of a shell episode: runs commands, keeps services, and ends everything else with each command.

Orders come as datagrams, each with a JSON text in a memory file and more descriptors beside it, on a socket that no
other process of the episode has. Each order is answered with one JSON object once nothing it started is left, services
excepted. Process 1 can not be signalled, traced or read from inside, so what it says holds whatever the commands do.

The folder and the environment that a command leaves are written by its bash to a pipe, as its exit trap: a command can
spoil that for the commands after it, and for nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import resource
import select
import signal
import socket
import string
import time

from shell_files import Collector, copy, write_all

MESSAGE_BYTES, MOST_FDS = 64, 16
COMMAND_FD, STATE_FD = 8, 9
STATE_BYTES, MOST_NAMES = 1 << 17, 2000
SWEEP_SECONDS = 0.5
_DUMPABLE, _SUBREAPER = 4, 36
_LIBC = ctypes.CDLL(None, use_errno=True)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_NOT_CARRIED = {"SHLVL", "_", "PWD", "BASHOPTS", "SHELLOPTS"}
_PREFIXES = " ".join(f'"${{!{letter}@}}"' for letter in string.ascii_letters + "_")
_READ = "IFS= read -rd '' -u 8 __episode_command; exec 8<&-; "
_RUN = 'eval "$__episode_command"'
# No fork in it, since the command may have left no room for one; one line, so that errors name the command's own lines;
# the command comes on a descriptor, so that it may be long and does not find itself when it looks for processes.
_SCRIPT = (
    _READ + "__episode_state() { { set +eux; } 2>/dev/null; local __n; { printf '%s\\0' \"$PWD\"; "
    "for __n in " + _PREFIXES + '; do [[ ${!__n@a} == *x* ]] && printf \'%s=%s\\0\' "$__n" "${!__n}"; done; '
    "printf 'end\\0'; } >&9; } 2>/dev/null; trap __episode_state EXIT; " + _RUN
)


class Episode:
    """Orders, and what lasts from one to the next.

    Attributes:
        cwd, env: folder and environment of the next command.
        services: name -> process that adopts whatever its service leaves behind.
    """

    def __init__(self, control):
        self.control = control
        self.cwd, self.env, self.first_env = "/", {}, {}
        self.services = {}

    def serve(self):
        """Answer orders until the supervisor hangs up."""
        while True:
            message, fds, _, _ = socket.recv_fds(self.control, MESSAGE_BYTES, MOST_FDS)
            if not message:
                os._exit(0)
            order = json.loads(os.pread(fds[0], os.fstat(fds[0]).st_size, 0))
            os.close(fds.pop(0))
            self.reap(None)
            try:
                answer = getattr(self, "do_" + message.decode(), lambda *_: {})(order, fds)
            except OSError as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            for fd in fds:
                os.close(fd)
            if message != b"kill":
                self.control.send(json.dumps(answer).encode())

    # ---- orders

    def do_begin(self, order, fds):
        """Learn where commands start; write the episode's files, all in one descriptor."""
        self.cwd, self.env, self.first_env = order["cwd"], dict(order["env"]), dict(order["env"])
        at = 0
        for path, size, mode in order["files"]:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            at += copy(fds[0], at, out, size)
            os.fchmod(out, mode)
            os.close(out)
        return {}

    def do_run(self, order, fds):
        """Run a command, or a program by its words, to its end or until told to kill it."""
        state, state_end = os.pipe()
        os.set_blocking(state, False)
        child = os.fork()
        if child == 0:
            self.become(order, fds, state_end)
        os.close(state_end)
        noted = bytearray()
        spent, status = self.wait(child, state, noted)
        drain(state, noted)
        os.close(state)
        more, lost = self.sweep()
        if "argv" not in order:
            self.take_state(bytes(noted))
        signalled = os.WIFSIGNALED(status)
        return {
            "code": None if signalled else os.WEXITSTATUS(status),
            "signal": os.WTERMSIG(status) if signalled else None,
            "cpu_s": spent + more,
            "lost": lost,
        }

    def do_service(self, order, fds):
        """Start a command that may outlive the commands after it."""
        name = order["name"]
        if name in self.services:
            return {"error": "a service of this name runs"}
        pid = os.fork()
        if pid == 0:
            self.keep(order, fds)
        self.services[name] = pid
        return {}

    def do_stop(self, order, fds):
        """End a service and all that it started."""
        pid = self.services.pop(order["name"], None)
        if pid is None:
            return {"error": "no service of this name runs"}
        os.kill(pid, signal.SIGKILL)
        self.sweep()
        return {}

    def do_services(self, order, fds):
        """Name the services that run."""
        return {"names": sorted(self.services)}

    def do_quiet(self, order, fds):
        """End everything."""
        self.sweep(everything=True)
        return {}

    def do_collect(self, order, fds):
        """End everything, then copy files into a descriptor: their bytes one after the other, then a JSON index."""
        self.sweep(everything=True)
        collector = Collector(fds[0], order)
        for path in order["paths"]:
            collector.take(path)
        index = json.dumps({"files": collector.files, "refused": collector.refused}).encode()
        write_all(fds[0], index)
        return {"index_at": collector.size, "index_bytes": len(index)}

    # ---- commands

    def become(self, order, fds, state_end):
        """Turn a fork into the command, or into the program that words name; never returns."""
        try:
            os.setsid()
            self.control.close()
            targets = dict(enumerate(fds))
            if "argv" not in order:
                targets[COMMAND_FD] = targets.pop(len(fds) - 1)
                if state_end is not None:
                    targets[STATE_FD] = state_end
            place(targets)
            tighten(order["limits"])
            enter(self.cwd)
            if "argv" in order:
                os.execve(order["argv"][0], order["argv"], self.first_env)
            words = ["bash", "-c", _SCRIPT if state_end is not None else _READ + _RUN]
            try:
                os.execve("/bin/bash", words, self.env)
            except OSError:
                # The environment it left does not fit; the one it began with does.
                os.execve("/bin/bash", words, self.first_env)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode(errors="replace"))
        finally:
            os._exit(126)

    def keep(self, order, fds):
        """Be the parent of a service's orphans until it has none; never returns."""
        try:
            os.setsid()
            _LIBC.prctl(_SUBREAPER, 1, 0, 0, 0)
            child = os.fork()
            if child == 0:
                log = order["log"]
                os.makedirs(os.path.dirname(log), exist_ok=True)
                out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
                self.become(order, [fds[0], out, out, fds[1]], None)
            self.control.close()
            os.closerange(0, 1024)
            while True:
                os.wait()
        except BaseException:
            pass
        finally:
            os._exit(0)

    def wait(self, child, state, noted):
        """Wait for a command: (CPU seconds of what was reaped, its wait status)."""
        pidfd = os.pidfd_open(child)
        waiter = select.poll()
        waiter.register(self.control.fileno(), select.POLLIN)
        waiter.register(pidfd, select.POLLIN)
        waiter.register(state, select.POLLIN)
        spent = 0.0
        try:
            while True:
                for fd, _ in waiter.poll(50):
                    if fd == state and not drain(state, noted):
                        waiter.unregister(state)
                    elif fd == self.control.fileno():
                        self.interrupted(child)
                used, status = self.reap(child)
                spent += used
                if status is not None:
                    return spent, status
        finally:
            os.close(pidfd)

    def interrupted(self, child):
        """Take an order in the middle of a command: to kill it, or the end of the supervisor."""
        message, fds, _, _ = socket.recv_fds(self.control, MESSAGE_BYTES, MOST_FDS)
        for fd in fds:
            os.close(fd)
        if not message:
            os._exit(0)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)

    def take_state(self, noted):
        """Adopt the folder and the environment that a command left, if it left them whole."""
        fields = noted.split(b"\0")
        if fields[-2:] != [b"end", b""] or len(fields) > MOST_NAMES:
            return
        cwd, pairs = os.fsdecode(fields[0]), [os.fsdecode(field).partition("=") for field in fields[1:-2]]
        if cwd.startswith("/") and os.path.isdir(cwd):
            self.cwd = cwd
        kept = {name: value for name, _, value in pairs if _NAME.match(name) and name not in _NOT_CARRIED}
        self.env = kept

    # ---- processes

    def reap(self, child):
        """Collect what has ended, without waiting: (CPU seconds, wait status of `child` if it was among them)."""
        spent, status = 0.0, None
        while True:
            try:
                pid, ended, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                pid = 0
            if pid == 0:
                return spent, status
            self.services = {name: keeper for name, keeper in self.services.items() if keeper != pid}
            spent += usage.ru_utime + usage.ru_stime
            status = ended if pid == child else status

    def sweep(self, everything=False):
        """Kill all processes but services: (CPU seconds of what was reaped, names of services that died too).

        Whatever is not below a service is a child of this process sooner or later, since orphans become its own. Where
        that is outrun by forks, or nothing is to be spared, one signal reaches every process at once.
        """
        spent, deadline, quiet = 0.0, time.monotonic() + SWEEP_SECONDS, 0
        before = set(self.services)
        while self.services and not everything:
            spent += self.reap(None)[0]
            others = [pid for pid in children() if pid not in self.services.values()]
            for pid in others:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            quiet = 0 if others else quiet + 1
            if quiet == 2:
                return spent, sorted(before - set(self.services))
            if time.monotonic() > deadline:
                break
            time.sleep(0.001)
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        while True:
            try:
                usage = os.wait4(-1, 0)[2]
            except ChildProcessError:
                break
            spent += usage.ru_utime + usage.ru_stime
        self.services = {}
        return spent, [] if everything else sorted(before)


def children():
    """List the direct children of this process, with or without /proc."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        pass
    newest = os.fork()
    if newest == 0:
        os._exit(0)
    os.waitpid(newest, 0)
    found = []
    for pid in range(2, newest):
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            continue
        found.append(pid)
    return found


def place(targets):
    """Give this process the descriptors of a mapping from numbers, and no others."""
    high = {number: fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for number, fd in targets.items()}
    for number, fd in high.items():
        os.dup2(fd, number, inheritable=True)
    for number in range(max(targets)):
        if number not in targets:
            os.closerange(number, number + 1)
    os.closerange(max(targets) + 1, 1024)


def tighten(limits):
    """Lower the limits of this process and of all that it will start; never raise one."""
    for name, value in limits.items():
        number = getattr(resource, name)
        bounds = [bound for bound in (*resource.getrlimit(number), value) if bound != resource.RLIM_INFINITY]
        resource.setrlimit(number, (min(bounds), min(bounds)))
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
    except OSError:
        # Where /proc is not there, process 1 is the smallest of the group only by its size.
        pass


def enter(folder):
    """Go to a folder; to the root if it is gone."""
    try:
        os.chdir(folder)
    except OSError:
        os.chdir("/")


def drain(fd, data):
    """Read what is there, keep as much as a state may have; False at the end of file."""
    while True:
        try:
            block = os.read(fd, 1 << 16)
        except BlockingIOError:
            return True
        if not block:
            return False
        data += block[: STATE_BYTES - len(data)]


def main(control):
    """Serve on a descriptor."""
    _LIBC.prctl(_DUMPABLE, 0, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Process 1 can be signalled from inside only where it has a handler, so it has none.
        signal.signal(number, signal.SIG_DFL)
    os.umask(0o022)
    episode = Episode(socket.socket(fileno=control))
    episode.control.send(b'{"event": "ready"}')
    episode.serve()
