"""Run a program and then one call of it, and write the value as JSON of exact builtin types.

This text is the main program of a sandboxed run. Its standard input is one JSON object: `program`, `setup`, and either
`entry_point` with `args` and `kwargs` or an expression `call`; what the call should give is not in it. The value goes
to the descriptor that was standard output at the start; what the program prints goes to standard error.

The program shares this process, so it can break this code or write an answer by itself. All it can gain is an answer
of its own making, which is then compared outside like any other.
"""

import collections
import json
import linecache
import os
import sys
import traceback
import types

MAX_DEPTH = 64
NAME = "candidate"
_PLAIN = (bool, int, float, str, type(None))
# Containers of the standard library that compare equal to a builtin one. The exact type is asked for, no subclass.
_LISTS = (list, collections.deque)
_DICTS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)


def to_wire(value, depth=0):
    """Turn a value of exact builtin types into JSON that keeps the types apart.

    None, booleans, strings, lists, finite floats and integers below 2**63 stand for themselves. All else is an object
    with one key that names the type: {"tuple": [...]}, {"set": [...]}, {"dict": [[key, value], ...]}, {"int": hex},
    {"float": "nan" | "inf" | "-inf"}, {"bytes": hex}, {"complex": [real, imaginary]}.

    Raises:
        TypeError: a value of another type; a subclass counts as another type.
        ValueError: nested deeper than MAX_DEPTH.
    """
    kind = type(value)
    if depth > MAX_DEPTH:
        raise ValueError(f"a value must not be nested deeper than {MAX_DEPTH}")
    if kind is int and not -(2**63) <= value < 2**63:
        return {"int": hex(value)}
    if kind is float and value - value != 0.0:
        return {"float": repr(value)}
    if kind in _PLAIN:
        return value
    if kind in _LISTS:
        return [to_wire(item, depth + 1) for item in value]
    if kind is tuple:
        return {"tuple": [to_wire(item, depth + 1) for item in value]}
    if kind in (set, frozenset):
        return {"set": [to_wire(item, depth + 1) for item in value]}
    if kind in _DICTS:
        return {"dict": [[to_wire(key, depth + 1), to_wire(item, depth + 1)] for key, item in value.items()]}
    if kind in (bytes, bytearray):
        return {"bytes": value.hex()}
    if kind is complex:
        return {"complex": [to_wire(value.real), to_wire(value.imag)]}
    raise TypeError(f"a value must be of a builtin type, not {kind.__name__}")


def from_wire(wire, frozen=False):
    """Undo `to_wire`; sets are frozen inside sets and keys, a deque comes back as a list, a Counter as a dict."""
    if isinstance(wire, list):
        return [from_wire(item) for item in wire]
    if not isinstance(wire, dict):
        return wire
    ((tag, body),) = wire.items()
    if tag == "tuple":
        return tuple(from_wire(item, frozen) for item in body)
    if tag == "set":
        return (frozenset if frozen else set)(from_wire(item, True) for item in body)
    if tag == "dict":
        return {from_wire(key, True): from_wire(item) for key, item in body}
    if tag == "int":
        return int(body, 16)
    if tag == "float":
        return float(body)
    if tag == "bytes":
        return bytes.fromhex(body)
    return complex(*(from_wire(part) for part in body))


def load(program, setup=""):
    """Run a program, then set-up lines, as one module, and return its names."""
    module = types.ModuleType(NAME)
    sys.modules[NAME] = module
    for name, text in (("main.py", program), ("setup.py", setup)):
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        exec(compile(text, name, "exec"), module.__dict__)  # the one place where a program runs, inside the sandbox
    return module.__dict__


def look_up(names, entry_point):
    """Find `f`, or the method `f` of a fresh `Solution`, as LeetCode has it; `A.f` means the method of a fresh A."""
    owner, _, method = entry_point.rpartition(".")
    if not owner and method not in names and hasattr(names.get("Solution"), method):
        owner = "Solution"
    return getattr(names[owner](), method) if owner else names[method]


def answer(request):
    """Return the wire form of the value that the request asks for."""
    names = load(request["program"], request.get("setup", ""))
    if "call" in request:
        linecache.cache["call.py"] = (len(request["call"]), None, [request["call"]], "call.py")
        return to_wire(eval(compile(request["call"], "call.py", "eval"), names))
    function = look_up(names, request["entry_point"])
    return to_wire(function(*from_wire(request["args"]), **from_wire(request.get("kwargs", {"dict": []}))))


def print_error(error):
    """Print a traceback as if the program had been started by itself: without the frames of this file."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename in ("main.py", "setup.py", "call.py")]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(own)] if own else []
    sys.stderr.write("".join(lines + traceback.format_exception_only(type(error), error)))


def main():
    """Answer the request on standard input."""
    request = json.loads(sys.stdin.buffer.read().decode("utf-8"))
    channel = os.dup(1)
    os.dup2(2, 1)
    try:
        reply = json.dumps(answer(request), allow_nan=False).encode("ascii")
    except Exception as error:
        print_error(error)
        sys.stdout.flush()
        sys.exit(1)
    sys.stdout.flush()
    while reply:
        reply = reply[os.write(channel, reply) :]


if __name__ == "__main__":
    main()
