"""Process 1 of a sandbox: one fork at a time, everything else killed and reaped before the fork's end is reported.

Orders come as datagrams with descriptors beside them, on a socket that no fork keeps:

    setup   a JSON text (kind, module text, setup, names of files), then one descriptor a file
    start   a JSON text (limits, arguments), stdin, stdout, stderr; for handlers also where requests and replies go

The first is answered with {"event": "set"}, the end of a fork with {"event": "exit", ...}.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import time

MESSAGE_BYTES, MOST_FDS = 64, 250


def main(control_fd, tier, base):
    """Serve orders until the supervisor hangs up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Process 1 can be signalled from inside only where it has a handler, so it has none.
        signal.signal(number, signal.SIG_DFL)
    control = socket.socket(fileno=control_fd)
    state = {"tier": tier, "base": base, "box": base + "/box", "files": base + "/files"}
    for folder in (state["box"], base + "/shm", state["files"]):
        os.makedirs(folder, exist_ok=True)
    os.environ.update(HOME=state["box"], TMPDIR=base)
    gc.collect()
    gc.freeze()
    control.send(b'{"event": "ready"}')
    while True:
        message, fds, _, _ = socket.recv_fds(control, MESSAGE_BYTES, MOST_FDS)
        if not message:
            os._exit(0)
        order = json.loads(read_all(fds[0]))
        os.close(fds.pop(0))
        answer = set_up(state, order, fds) if message == b"setup" else run(state, order, fds, control)
        control.send(json.dumps(answer).encode())


def set_up(state, order, fds):
    """Take the candidate or the handler's module, and write the files."""
    state.update(order)
    paths = dict(state["bound"])
    for name, fd in zip(state["names"], fds):  # noqa: B905 - Python 3.9 has no strict=
        folder = state["box"] if state["kind"] == "code" else state["files"]
        paths[name] = os.path.join(folder, name)
        os.makedirs(os.path.dirname(paths[name]), exist_ok=True)
        copy_to(fd, paths[name], 0o644 if state["kind"] == "code" else 0o444)
    state["paths"] = paths
    for fd in fds:
        os.close(fd)
    if state["kind"] == "code":
        with open(os.path.join(state["box"], "main.py"), "wb") as file:
            file.write(state["setup"]["program"].encode("utf-8", "surrogatepass"))
    return {"event": "set"}


def read_all(fd):
    """Read a sealed memory file from its start, whatever its offset."""
    return os.pread(fd, os.fstat(fd).st_size, 0)


def copy_to(fd, path, mode):
    """Copy a file's bytes to a path."""
    size, at = os.fstat(fd).st_size, 0
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        while at < size:
            block = os.pread(fd, min(size - at, 1 << 20), at)
            if not block:
                break
            at += os.write(out, block)
    finally:
        os.close(out)


def show_input(fd, path):
    """Put standard input where the link /dev/stdin leads, since there is no /proc; what programs left there may win."""
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        copy_to(fd, path, 0o600)


def run(state, order, fds, control):
    """Fork, wait for the fork's end, remove everything that it left behind."""
    if state["kind"] == "code":
        show_input(fds[0], os.path.join(state["base"], "stdin"))
    sys.stdout.flush()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            control.close()
            code = in_child(state, order, fds)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    for fd in fds:
        os.close(fd)
    spent, peak, status = wait_for(child, control)
    wall = time.monotonic() - started
    kill_the_rest(state["tier"])
    while True:
        try:
            _, _, usage = os.wait4(-1, 0)
        except ChildProcessError:
            break
        spent += usage.ru_utime + usage.ru_stime
        peak = max(peak, usage.ru_maxrss)
    ended = os.WIFSIGNALED(status)
    return {
        "event": "exit",
        "code": None if ended else os.WEXITSTATUS(status),
        "signal": os.WTERMSIG(status) if ended else None,
        "cpu_s": spent,
        "wall_s": wall,
        "peak_bytes": peak << 10,
    }


def wait_for(child, control):
    """Wait for the fork itself; orphans are reaped on the way, and a lost supervisor ends everything."""
    spent, peak = 0.0, 0
    waiter = select.poll()
    waiter.register(control.fileno(), select.POLLHUP | select.POLLERR | select.POLLRDHUP)
    pidfd = os.pidfd_open(child)
    waiter.register(pidfd, select.POLLIN)
    try:
        while True:
            for fd, _ in waiter.poll(50):
                if fd != pidfd:
                    os._exit(0)
            while True:
                pid, ended, usage = os.wait4(-1, os.WNOHANG)
                if pid == 0:
                    break
                spent += usage.ru_utime + usage.ru_stime
                peak = max(peak, usage.ru_maxrss)
                if pid == child:
                    return spent, peak, ended
    finally:
        os.close(pidfd)


def kill_the_rest(tier):
    """Kill every process of the sandbox but this one."""
    if tier in ("ns", "lsm"):
        # The namespace, or Landlock's scope for signals, keeps this from reaching anything else.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(-1, signal.SIGKILL)
        return
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            children = [int(word) for word in file.read().split()]
        if not children:
            return
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def in_child(state, order, fds):
    """Become the program or the handler."""
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number, inheritable=True)
        os.close(fd)
    keep = fds[3:]
    if state["tier"] == "lsm":
        # A scope within the scope: the fork's signals do not reach this process's parent.
        sys.modules["landlock"].restrict(["/"], [state["base"], "/dev/null"], True)
    tighten(order["limits"], order["base_bytes"], state["kind"] == "code")
    os.chdir(state["box"])
    if state["kind"] == "code":
        close_from(3, ())
        import code_child

        return code_child.run_program(state["setup"]["program"], os.path.join(state["box"], "main.py"), order["args"])
    close_from(3, keep)
    import handler_child

    return handler_child.serve(state["kind"], state["module"], state["setup"], state["paths"], *keep)


def close_from(first, keep):
    """Close every descriptor from `first` on but those kept."""
    for fd in sorted(keep):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, 1024)


def tighten(limits, base_bytes, single):
    """Lower the limits of this process and of all that it will start; never raise one."""
    wanted = {
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": limits["disk_mb"] << 20,
        "RLIMIT_NOFILE": limits["open_files"],
        "RLIMIT_AS": base_bytes + (limits["memory_mb"] << 20),
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_RTPRIO": 0,
    }
    if limits["count_processes"]:
        # Process 1 counts too.
        wanted["RLIMIT_NPROC"] = limits["processes"] + 1
    if single:
        wanted["RLIMIT_CPU"] = int(limits["cpu_s"] + 0.999) + 1
    for name, value in wanted.items():
        number = getattr(resource, name, None)
        if number is None:
            continue
        soft, hard = resource.getrlimit(number)
        bounds = [bound for bound in (soft, hard, value) if bound != resource.RLIM_INFINITY]
        resource.setrlimit(number, (min(bounds), min(bounds)))
