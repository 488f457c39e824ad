"""A second belt: Landlock rules that only ever take away. The belt of tier "lsm", where there are no namespaces."""

from __future__ import annotations

import os

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_EXECUTE, _WRITE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_ALL_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_ON_FILES = _EXECUTE | _WRITE | _READ_FILE | (1 << 14) | (1 << 15)
_TCP = 3
_SCOPES = 3
_NO_NEW_PRIVILEGES, _DUMPABLE, _SUBREAPER, _SECCOMP, _FILTER = 38, 4, 36, 22, 2


def undumpable():
    """Keep every other process of the same user away from this one's memory and descriptors."""
    return _libc().prctl(_DUMPABLE, 0, 0, 0, 0)


def adopt_orphans():
    """Become the parent of every process below whose own parent ends."""
    _check(_libc().prctl(_SUBREAPER, 1, 0, 0, 0))


def filter_calls(program):
    """Install a seccomp filter, given as bytes."""
    import ctypes

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    _check(_libc().prctl(_SECCOMP, _FILTER, ctypes.byref(Program(len(program) // 8, program)), 0, 0))


def abi():
    """Give the kernel's Landlock version; 0 where there is none."""
    return max(0, _libc().syscall(_CREATE, None, 0, 1))


def restrict(readable, writable, scoped):
    """Leave this process, and all it starts, with reading under some paths and everything under others.

    With `scoped`, signals and abstract sockets reach only processes restricted with it (version 6), and TCP is refused.
    """
    import struct

    version = abi()
    if version < (6 if scoped else 1):
        raise OSError(f"Landlock version {version} is not enough")
    libc = _libc()
    everything = _ALL_BY_ABI[min(version, 5)]
    more = (_TCP, _SCOPES) if scoped else ()
    attributes = struct.pack(f"={1 + len(more)}Q", everything, *more)
    ruleset = _check(libc.syscall(_CREATE, attributes, len(attributes), 0))
    for paths, access in ((readable, _EXECUTE | _READ_FILE | _READ_DIR), (writable, everything)):
        for path in paths:
            try:
                fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            allowed = access & everything if os.path.isdir(path) else access & everything & _ON_FILES
            _check(libc.syscall(_ADD, ruleset, 1, struct.pack("=Qi", allowed, fd), 0))
            os.close(fd)
    _check(libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _check(libc.syscall(_RESTRICT, ruleset, 0))
    os.close(ruleset)


def _libc():
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _check(value):
    if value < 0:
        import ctypes

        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return value
