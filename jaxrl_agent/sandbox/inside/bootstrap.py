"""The first lines that run in a sandbox: load the other files from a descriptor, lower privileges, import, serve.

Its text is the interpreter's `-c` argument; `sys.argv` holds descriptor of orders, descriptor of the files, the tier
and the writable folder.
"""

import _sitebuiltins
import builtins
import contextlib
import json
import os
import sys
import types

COMMON = (
    "array bisect collections copy datetime decimal enum fractions functools heapq io itertools linecache math "
    "operator random re statistics string threading traceback typing"
)


def start():
    """Load, restrict, serve."""
    for name in ("PYTHONHASHSEED", "PYTHONSAFEPATH"):  # they have done their work
        os.environ.pop(name, None)
    sys.path[:] = [place for place in sys.path if place]  # Python 3.10 and older know no PYTHONSAFEPATH
    control, bundle, tier, base = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    files = json.loads(os.pread(bundle, os.fstat(bundle).st_size, 0))
    os.closerange(max(control, bundle) + 1, 1024)
    os.close(bundle)
    for name, text in files["modules"].items():
        module = sys.modules[name] = types.ModuleType(name)
        exec(compile(text, name + ".py", "exec", dont_inherit=True), module.__dict__)
    confine(sys.modules["landlock"], tier, base, files)
    for name in COMMON.split():
        __import__(name)
    # The interpreter skips `site` to start faster; programs know it by these two.
    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))
    sys.modules["runner"].main(control, tier, base)


def confine(landlock, tier, base, files):
    """Take away what the tier does not take away from outside."""
    try:
        landlock.undumpable()
    except (ImportError, OSError):
        if tier == "lsm":
            raise
    if tier == "ns":
        # The namespaces stand without it.
        with contextlib.suppress(ImportError, OSError):
            landlock.restrict(["/"], ["/tmp", "/dev"], False)
    else:
        landlock.adopt_orphans()
        if tier == "lsm":
            landlock.restrict(files["readable"], [base, "/dev/null"], True)
            landlock.filter_calls(bytes.fromhex(files["seccomp"]))


if __name__ == "__main__":
    start()
