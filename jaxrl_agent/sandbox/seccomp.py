"""The system-call filter: a deny-list as classic BPF, assembled by hand so that no library is needed.

A deny-list because model-written programs legitimately use most of the kernel; namespaces, rlimits and the read-only
view carry the weight, and the filter closes what these leave open. `clone3` answers ENOSYS, since its flags lie behind
a pointer that a filter cannot read; the C library then falls back to `clone`, whose flags are checked.
"""

from __future__ import annotations

import errno
import platform
import struct

_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT, _FOURTH_ARGUMENT_AT = 0, 4, 16, 40
_X32_BIT = 0x40000000
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
_NAMESPACE_FLAGS = 0x7E020000

# machine -> (AUDIT_ARCH constant, column of the table below)
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

# name: (x86_64, aarch64); None where an architecture has no such call. Numbers from 424 on are the same everywhere.
_MOUNTS = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "open_tree": (428, 428),
    "mount_setattr": (442, 442), "open_tree_attr": (467, 467),
}  # fmt: skip
_ATTACKS = {
    "ptrace": (101, 117), "bpf": (321, 280), "unshare": (272, 97), "setns": (308, 268), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
}  # fmt: skip
_REFUSED = {
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "perf_event_open": (298, 241), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "userfaultfd": (323, 282),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "process_madvise": (440, 440),
    "kcmp": (312, 272), "pidfd_getfd": (438, 438), "chroot": (161, 51), "shmget": (29, 194), "shmat": (30, 196),
    "shmctl": (31, 195), "shmdt": (67, 197), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192),
    "mq_open": (240, 180), "mq_unlink": (241, 181), "mq_timedsend": (242, 182), "mq_timedreceive": (243, 183),
    "mq_notify": (244, 184), "mq_getsetattr": (245, 185), "personality": (135, 92), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "quotactl": (179, 60), "quotactl_fd": (443, 443), "swapon": (167, 224),
    "swapoff": (168, 225), "reboot": (169, 142), "acct": (163, 89), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171), "iopl": (172, None),
    "ioperm": (173, None), "modify_ldt": (154, None), "uselib": (134, None), "fanotify_init": (300, 262),
    "move_pages": (279, 239), "migrate_pages": (256, 238), "mbind": (237, 235), "set_mempolicy": (238, 237),
    "lookup_dcookie": (212, 18), "syslog": (103, 116), "vhangup": (153, 58), "nfsservctl": (180, 42),
    "sethostname": (170, 161), "setdomainname": (171, 162), "statmount": (457, 457), "listmount": (458, 458),
}  # fmt: skip
_SOCKETS = {"socket": (41, 198), "socketpair": (53, 199)}
_CLONE, _CLONE3, _PRLIMIT, _MMAP = (56, 220), (435, 435), (302, 261), (9, 222)
_MAP_SHARED, _MAP_ANONYMOUS = 0x01, 0x20


def supported() -> bool:
    """Whether the filter knows this machine's system-call numbers."""
    return platform.machine() in _MACHINES


def assemble(
    *, machine: str | None = None, sockets: bool = False, kill: bool = True, shared_memory: bool = True
) -> bytes:
    """Assemble the filter as an array of `struct sock_filter`, as bubblewrap's `--seccomp` and seccomp(2) take it.

    Args:
        machine: name of the machine as `uname -m` gives it; this one by default.
        sockets: whether sockets may be opened (into an empty network namespace, say).
        kill: whether mounting, tracing, BPF and namespaces kill with SIGSYS; else they are refused with EPERM.
        shared_memory: whether anonymous memory may be shared. What is unmapped of it stays held while any page is
            mapped, and then only a cgroup counts it.

    Returns:
        The program, 8 bytes an instruction.

    Raises:
        KeyError: the machine's system-call numbers are not known.
    """
    architecture, column = _MACHINES[machine or platform.machine()]
    refuse = _ERRNO | errno.EPERM
    program = [_instruction(_LOAD, _ARCHITECTURE_AT), *_unless(_JUMP_EQUAL, architecture, _KILL)]
    program.append(_instruction(_LOAD, _NUMBER_AT))
    if column == 0:
        program += _when(_JUMP_GREATER_EQUAL, _X32_BIT, _KILL)
    actions = [
        (_MOUNTS | _ATTACKS, _KILL if kill else refuse),
        (_REFUSED | ({} if sockets else _SOCKETS), refuse),
        ({"clone3": _CLONE3}, _ERRNO | errno.ENOSYS),
    ]
    for calls, action in actions:
        for numbers in calls.values():
            if numbers[column] is not None:
                program += _when(_JUMP_EQUAL, numbers[column], action)
    if not shared_memory:
        program += [
            _instruction(_JUMP_EQUAL, _MMAP[column], 0, 5),
            _instruction(_LOAD, _FOURTH_ARGUMENT_AT),
            _instruction(_JUMP_BITS, _MAP_ANONYMOUS, 0, 2),
            *_when(_JUMP_BITS, _MAP_SHARED, _ERRNO | errno.ENOMEM),
            _instruction(_RETURN, _ALLOW),
        ]
    program += [
        # Limits of others: of process 1, say, which belongs to the same user and would fail for want of descriptors.
        _instruction(_JUMP_EQUAL, _PRLIMIT[column], 0, 4),
        _instruction(_LOAD, _FIRST_ARGUMENT_AT),
        *_unless(_JUMP_EQUAL, 0, refuse),
        _instruction(_RETURN, _ALLOW),
        _instruction(_JUMP_EQUAL, _CLONE[column], 0, 3),
        _instruction(_LOAD, _FIRST_ARGUMENT_AT),
        *_when(_JUMP_BITS, _NAMESPACE_FLAGS, _KILL if kill else refuse),
        _instruction(_RETURN, _ALLOW),
    ]
    return b"".join(program)


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _when(test: int, value: int, action: int) -> list[bytes]:
    return [_instruction(test, value, 0, 1), _instruction(_RETURN, action)]


def _unless(test: int, value: int, action: int) -> list[bytes]:
    return [_instruction(test, value, 1, 0), _instruction(_RETURN, action)]
