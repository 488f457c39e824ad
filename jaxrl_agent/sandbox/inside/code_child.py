"""The fork that runs a candidate's program as `__main__`, and ends as the interpreter itself would."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import os
import sys
import types


def run_program(text, path, arguments):
    """Run the program; its exit code is returned after its exit handlers ran and its output was flushed."""
    open_streams()
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=path, __builtins__=builtins)
    for name in [name for name in sys.modules if name in ("runner", "code_child", "handler_child", "landlock")]:
        del sys.modules[name]
    sys.modules["__main__"] = module
    sys.argv = [path, *arguments]
    sys.path.insert(0, os.path.dirname(path))
    code = execute(text, path, module.__dict__)
    return finish(code)


def open_streams():
    """Make the standard streams anew: those of process 1 belong to other descriptors."""
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


def execute(text, path, names):
    """Compile and run; an uncaught exception is reported as the interpreter reports it."""
    try:
        exec(compile(text, path, "exec", dont_inherit=True), names)
    except SystemExit as stop:
        return exit_code(stop.code)
    except BaseException:
        kind, value, trace = sys.exc_info()
        try:
            sys.excepthook(kind, value.with_traceback(trace.tb_next), trace.tb_next)
        except BaseException:
            os.write(2, f"{getattr(kind, '__name__', 'error')}\n".encode())
        return 1
    return 0


def exit_code(code):
    """Give the exit code that `sys.exit(code)` means."""
    if code is None:
        return 0
    if isinstance(code, int):
        return int(code) & 0xFF
    with contextlib.suppress(BaseException):
        print(code, file=sys.stderr)
    return 1


def finish(code):
    """Wait for threads, call exit handlers, flush."""
    try:
        threading = sys.modules.get("threading")
        if threading is not None:
            threading._shutdown()
        atexit._run_exitfuncs()
    except BaseException:
        pass
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            code = code or 120
    return code
