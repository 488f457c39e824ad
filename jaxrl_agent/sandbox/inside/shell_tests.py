"""Runs the tests of a task over files of an episode, each in a fork, and reports each on a descriptor of its own.

The text of this file is the `-c` argument of an interpreter that takes nothing from its surroundings (`-I`); the one
word after it is JSON: folder of the tests, their names, a token. A test passes only if it returns: an early exit, a
lost process or a missing line is none. Programs that a test starts have neither the descriptor nor the token.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import types

REPORT_FD, REASON_CHARACTERS = 3, 500


def main():
    """Run the tests in order."""
    order = json.loads(sys.argv[1])
    del sys.argv[1:]
    os.set_inheritable(REPORT_FD, False)
    for name in order["names"]:
        status, reason = run_one(order["folder"], name)
        line = {"token": order["token"], "name": name, "status": status, "reason": reason[:REASON_CHARACTERS]}
        os.write(REPORT_FD, (json.dumps(line) + "\n").encode())


def run_one(folder, name):
    """Run one test in a fork: (status, one line for people)."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(REPORT_FD)
        os.close(reader)
        answer = call(folder, name)
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    os.set_blocking(reader, False)
    try:
        text = os.read(reader, 1 << 16)
    except BlockingIOError:
        text = b""
    os.close(reader)
    if status or not text:
        return "runtime_error", "the test ended early"
    return tuple(json.loads(text))


def call(folder, name):
    """Load a test's file and call the test."""
    file, *path = name.split("::")
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__file__ = os.path.join(folder, file)
    try:
        with open(module.__file__, "rb") as stream:
            code = compile(stream.read(), module.__file__, "exec", dont_inherit=True)
        module.__name__ = "tests"
        exec(code, module.__dict__)
    except BaseException as error:
        return failure(error)
    try:
        test = module
        for part in path:
            test = getattr(test, part)
            test = test() if isinstance(test, type) else test
        test()
    except BaseException as error:
        return failure(error)
    return "ok", ""


def failure(error):
    """Name what a test raised."""
    traceback.print_exception(type(error), error, error.__traceback__)
    status = "wrong" if isinstance(error, AssertionError) else "runtime_error"
    return status, f"{type(error).__name__}: {error}".replace("\n", " ")[:REASON_CHARACTERS]


main()
