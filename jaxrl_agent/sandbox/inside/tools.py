"""Run tool calls on the objects of one episode.

A call's name is a key of this episode's table, which is made from the task's own declarations at the start; no text of
a model is ever evaluated or used to look up an attribute. Arguments are checked against the declared schema first.
"""

import importlib.util
import json
import sys
import types

MAX_TEXT_BYTES = 256 * 1024  # of the calls of one reply of the model
MAX_DEPTH = 32  # of nested JSON
MAX_CALLS = 128  # in one reply
MAX_STATE_DEPTH = 64
INT64 = 2**63


# ---- calls as text


class Malformed(ValueError):
    """A text that is no list of tool calls."""


def parse_calls(text):
    """Read tool calls from JSON: one call or a list of them, each {"name": str, "arguments": {...}} and no more.

    Refused are texts above 256 kB, nesting deeper than 32, NaN and infinities, integers beyond 64 bits, keys that occur
    twice, strings that are no Unicode text, and more than 128 calls.

    Returns:
        A list of (name, arguments).

    Raises:
        Malformed: the text is something else; the message says what.
    """
    calls = parse_json(text)
    calls = calls if isinstance(calls, list) else [calls]
    if len(calls) > MAX_CALLS:
        raise Malformed(f"more than {MAX_CALLS} calls")
    for call in calls:
        if not isinstance(call, dict) or set(call) != {"name", "arguments"}:
            raise Malformed('a call must be an object with "name" and "arguments"')
        if not isinstance(call["name"], str) or not isinstance(call["arguments"], dict):
            raise Malformed('"name" must be a string and "arguments" an object')
    return [(call["name"], call["arguments"]) for call in calls]


def parse_json(text):
    """Read strict JSON within the limits of `parse_calls`."""
    try:
        if len(text.encode("utf-8")) > MAX_TEXT_BYTES:
            raise Malformed(f"longer than {MAX_TEXT_BYTES} bytes")
        value = json.loads(
            text,
            object_pairs_hook=_distinct,
            parse_int=_small_int,
            parse_float=_finite_float,
            parse_constant=_no_constant,
        )
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise Malformed(f"nested deeper than {MAX_DEPTH}") from None
    except UnicodeEncodeError:
        raise Malformed("not Unicode text") from None
    except json.JSONDecodeError as error:
        raise Malformed(f"not JSON: {error}") from None
    if depth_of(value) > MAX_DEPTH:
        raise Malformed(f"nested deeper than {MAX_DEPTH}")
    return value


def _distinct(pairs):
    table = dict(pairs)
    if len(table) != len(pairs):
        raise Malformed("a key occurs twice")
    return table


def _small_int(digits):
    value = int(digits) if len(digits) <= 20 else INT64
    if not -INT64 <= value < INT64:
        raise Malformed("an integer beyond 64 bits")
    return value


def _finite_float(digits):
    value = float(digits)
    if value - value != 0.0:
        raise Malformed("a number beyond the range of floats")
    return value


def _no_constant(name):
    raise Malformed(f"{name} is no JSON")


def depth_of(value):
    """How many lists and objects lie within one another, without recursion."""
    deepest, waiting = 0, [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, (dict, list)):
            deepest = max(deepest, depth + 1)
            waiting.extend((part, depth + 1) for part in (item.values() if isinstance(item, dict) else item))
    return deepest


# ---- schemas

# BFCL writes dict for object, float for number, tuple for array.
_TYPES = {
    **{"object": dict, "dict": dict, "array": list, "list": list, "tuple": list, "string": str},
    **{"boolean": bool, "bool": bool, "null": type(None)},
}
_NUMBERS = {"number": False, "float": False, "integer": True, "int": True}


def fit(value, schema, where="arguments"):
    """Check a JSON value against a schema and return it; a whole float becomes an integer where one is asked for.

    Known are type (one or a list), properties, required, additionalProperties, items, enum; a missing type admits all.
    Keys that are not declared are refused unless additionalProperties admits them or nothing is declared.

    Raises:
        ValueError: the value does not fit; the message says where.
    """
    kinds = schema.get("type", "any")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    value = _fit_type(value, kinds, where)
    if "enum" in schema and not any(type(item) is type(value) and item == value for item in schema["enum"]):
        raise ValueError(f"{where} must be one of {json.dumps(schema['enum'])}")
    if isinstance(value, list) and "items" in schema:
        return [fit(item, schema["items"], f"{where}[{at}]") for at, item in enumerate(value)]
    if isinstance(value, dict):
        return _fit_object(value, schema, where)
    return value


def _fit_type(value, kinds, where):
    for kind in kinds:
        if kind == "any" or (kind in _TYPES and type(value) is _TYPES[kind]):
            return value
        if kind in _NUMBERS and type(value) in (int, float):
            if not _NUMBERS[kind]:
                return value
            if value == int(value):
                return int(value)
    raise ValueError(f"{where} must be of type {' or '.join(kinds)}")


def _fit_object(value, schema, where):
    declared = schema.get("properties", {})
    others = schema.get("additionalProperties", not declared and where != "arguments")
    missing = [key for key in schema.get("required", []) if key not in value]
    if missing:
        raise ValueError(f"{where} lacks {', '.join(missing)}")
    unknown = [key for key in value if key not in declared]
    if unknown and others is False:
        raise ValueError(f"{where} must not have {', '.join(unknown)[:200]}")
    rest = others if isinstance(others, dict) else {}
    return {key: fit(item, declared.get(key, rest), f"{where}.{key}"[:200]) for key, item in value.items()}


# ---- states


def state_of(value, depth=0, above=()):
    """Turn a tool object's state into JSON: public attributes, at every depth; a loop becomes a step count upwards."""
    if depth > MAX_STATE_DEPTH:
        raise ValueError(f"a state must not be nested deeper than {MAX_STATE_DEPTH}")
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if value - value == 0.0 else {"float": repr(value)}
    if id(value) in above:
        return {"up": len(above) - above.index(id(value))}
    above = (*above, id(value))
    if isinstance(value, (list, tuple)):
        return [state_of(item, depth + 1, above) for item in value]
    if isinstance(value, dict):
        pairs = [[state_of(key, depth + 1, above), state_of(item, depth + 1, above)] for key, item in value.items()]
        return {"dict": sorted(pairs, key=lambda pair: json.dumps(pair[0], sort_keys=True))}
    if isinstance(value, (set, frozenset)):
        items = [state_of(item, depth + 1, above) for item in value]
        return {"set": sorted(items, key=lambda item: json.dumps(item, sort_keys=True))}
    if hasattr(value, "__dict__"):
        public = {name: item for name, item in vars(value).items() if not name.startswith("_")}
        attributes = {name: state_of(item, depth + 1, above) for name, item in public.items()}
        return {"object": type(value).__name__, "attributes": attributes}
    return {"object": type(value).__name__, "text": str(value)}


# ---- the episode


class Handler:
    """The objects of one episode, and the table of calls they answer.

    Args:
        setup: `modules`, a list of {"name": dotted name, "file": name in files}, imported in this order;
            `instances`, a list of {"name", "module", "class"} with, optionally, "load": a method that takes the
            scenario, "scenario": its JSON, and "options": its keyword arguments;
            `tools`, a list of {"name", "instance", "parameters"} with, optionally, "method";
            `max_result_bytes`, of the text of one result.
        files: paths of the modules' sources.
    """

    def __init__(self, setup, files):
        for module in setup["modules"]:
            _import(module["name"], files[module["file"]])
        self.instances = {}
        for declared in setup["instances"]:
            instance = getattr(sys.modules[declared["module"]], declared["class"])()
            if declared.get("load"):
                scenario = json.loads(json.dumps(declared.get("scenario", {})))  # the loader may keep and change it
                getattr(instance, declared["load"])(scenario, **declared.get("options", {}))
            self.instances[declared["name"]] = instance
        self.table = {}
        for tool in setup["tools"]:
            method = getattr(self.instances[tool["instance"]], tool.get("method", tool["name"]))
            self.table[tool["name"]] = (method, tool["parameters"])
        self.offered = set(setup.get("offered", self.table))
        self.max_result_bytes = setup["max_result_bytes"]

    def handle(self, request):
        """Answer {"calls": [[name, arguments], ...]}, {"state": true} or {"offer": [names]}."""
        if "calls" in request:
            return {"results": [self._call(name, arguments) for name, arguments in request["calls"]]}
        if "offer" in request:
            self.offered |= set(request["offer"]) & set(self.table)
            return {"offered": sorted(self.offered)}
        return {"state": {name: state_of(instance) for name, instance in self.instances.items()}}

    def _call(self, name, arguments):
        if name not in self.offered:
            return {"status": "security_violation", "text": "Error during execution: there is no such tool"}
        method, schema = self.table[name]
        try:
            arguments = fit(arguments, schema)
        except ValueError as error:
            return {"status": "runtime_error", "text": f"Error during execution: {error}"}
        try:
            return self._result(method(**arguments))
        except MemoryError:
            raise
        except Exception as error:
            return {"status": "runtime_error", "text": f"Error during execution: {error}"}

    def _result(self, value):
        data = text_of(value).encode("utf-8", "replace")
        if len(data) > self.max_result_bytes:
            return {"status": "output_limit", "text": data[: self.max_result_bytes].decode("utf-8", "ignore")}
        return {"status": "ok", "text": data.decode("utf-8")}


def text_of(value):
    """Text that the model sees of a result: text as it is, a dict as JSON if it can be, all else as `str` has it."""
    if isinstance(value, dict):
        try:
            return json.dumps(value)
        except (TypeError, ValueError):
            pass
    return str(value)


def _import(name, path):
    """Import a source file under a dotted name; packages on the way are made up."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        package = ".".join(parts[:end])
        if package not in sys.modules:
            sys.modules[package] = types.ModuleType(package)
            sys.modules[package].__path__ = []
    specification = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    if len(parts) > 1:
        setattr(sys.modules[".".join(parts[:-1])], parts[-1], module)
