"""Build the root of a shell episode, then become bubblewrap: one small file system holds all that the episode writes.

The text of this file is run by the system's interpreter as the user of the episode, with one line of JSON as its
argument. It enters a user and a mount namespace of its own, so that nothing it mounts is seen outside; bubblewrap then
makes the sandbox inside of these. Overlays are mounted here and not by bubblewrap: its own lie on a file system of half
the memory, and versions before 0.11 have none.

    scratch/            tmpfs of `disk_mb`; holds everything below but the lower layers
      root/             what becomes `/`: a folder of its own with an overlay at `usr`, or an overlay of a prepared root
      upper/, work/     the overlay's writable layer
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import stat
import sys

_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000
_NOSUID, _NODEV, _NOEXEC, _REC_SLAVE = 2, 4, 8, 0x4000 | 0x80000
_SECCOMP_FD = 5
_COPIED_BYTES, _COPIED_TOTAL = 1 << 20, 4 << 20
_SHARED = {"tmp": 0o1777, "var/tmp": 0o1777, "dev/shm": 0o1777}
_FOLDERS = (
    "dev/pts", "etc", "home", "proc", "root", "app", "mnt", "media", "opt", "srv", "run", "tmp", "var/tmp",
    "var/log", "var/lib", "var/cache", "dev/shm", "usr/local/bin", "usr/local/lib", "usr/local/share",
    "usr/local/include", "usr/local/sbin",
)  # fmt: skip
# Settings that programs of the system need; nothing that may hold names, addresses or keys of this host.
_SETTINGS = (
    "alternatives", "bash.bashrc", "debian_version", "fonts", "inputrc", "java-17-openjdk", "java-21-openjdk",
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "localtime", "magic", "mime.types", "os-release",
    "perl", "profile", "protocols", "python3", "python3.11", "python3.12", "python3.13", "services", "skel",
    "terminfo", "vim",
)  # fmt: skip
_LIBC = ctypes.CDLL(None, use_errno=True)


def main():
    """Mount, then become bubblewrap."""
    plan = json.loads(sys.argv[1])
    enter_namespaces()
    scratch = plan["scratch"]
    size = f"size={plan['disk_mb'] << 20},nr_inodes={plan['inodes']},mode=755"
    mount("tmpfs", scratch, "tmpfs", _NOSUID | _NODEV, size)
    for name in ("root", "upper", "work"):
        os.mkdir(scratch + "/" + name)
    if plan["base"] is None:
        own_root(scratch)
    else:
        prepared_root(scratch, plan["base"])
    finish_root(scratch + "/root", plan)
    install_filter(bytes.fromhex(plan["seccomp"]))
    with open("/proc/self/cmdline", "rb") as file:
        # Bubblewrap bears the name that this process was given, which says whose it is.
        name = file.read().split(b"\0")[0]
    os.execve(plan["command"][0], [name, *plan["command"][1:]], dict(os.environ))


def enter_namespaces():
    """Get the right to mount, over nothing but this process's own view."""
    user, group = os.geteuid(), os.getegid()
    check(_LIBC.unshare(_NEW_USER | _NEW_MOUNTS), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open("/proc/self/" + name, "w") as file:
            file.write(text)
    mount("none", "/", None, _REC_SLAVE, None)


def own_root(scratch):
    """Make a root of the host's /usr and settings that every user may know."""
    root = scratch + "/root"
    skeleton("/usr", scratch + "/upper", 2)
    skeleton("/usr/local", scratch + "/upper/local", 3)
    os.mkdir(root + "/usr")
    overlay("/usr", scratch, root + "/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if os.path.islink("/" + name):
            os.symlink(os.readlink("/" + name), root + "/" + name)
        elif os.path.isdir("/" + name):
            os.mkdir(root + "/" + name)
    for name in _FOLDERS:
        os.makedirs(root + "/" + name, exist_ok=True)
    left = [_COPIED_TOTAL]
    for name in _SETTINGS:
        copy_settings("/etc/" + name, root + "/etc/" + name, left)
    if os.path.isfile("/etc/ssl/openssl.cnf"):
        os.makedirs(root + "/etc/ssl")
        copy_settings("/etc/ssl/openssl.cnf", root + "/etc/ssl/openssl.cnf", left)
    write(root + "/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n")
    write(root + "/etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n")


def prepared_root(scratch, base):
    """Lay a writable layer over a prepared root; its folders belong to the episode down to the third level."""
    upper = scratch + "/upper"
    skeleton(base, upper, 3)
    for name in ("passwd", "group"):
        path = base + "/etc/" + name
        if os.path.isfile(path) and not os.path.islink(path):
            with open(path, errors="replace") as file:
                write(upper + "/etc/" + name, file.read().rstrip("\n") + "\n")
    overlay(base, scratch, scratch + "/root")
    for name in _FOLDERS:
        path = scratch + "/root/" + name
        if not os.path.lexists(path):
            os.makedirs(path)


def finish_root(root, plan):
    """Add what every episode has: its user, devices' names, terminals, its folders."""
    user, group = os.geteuid(), os.getegid()
    for name, mode in _SHARED.items():
        if os.path.isdir(root + "/" + name) and os.stat(root + "/" + name).st_uid == user:
            os.chmod(root + "/" + name, mode)
    passwd = f"user:x:{user}:{group}:user:{plan['home']}:/bin/bash\n"
    add_line(root + "/etc/passwd", passwd, "root:x:0:0:root:/root:/bin/bash\n")
    add_line(root + "/etc/group", f"user:x:{group}:\n", "root:x:0:\n")
    for name, target in (
        ("ptmx", "pts/ptmx"), ("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"), ("stderr", "/proc/self/fd/2"),
    ):  # fmt: skip
        if not os.path.lexists(root + "/dev/" + name):
            os.symlink(target, root + "/dev/" + name)
    for path in (plan["home"], plan["workdir"]):
        os.makedirs(root + path, exist_ok=True)
    with contextlib.suppress(OSError):
        # Where it can not be mounted, programs that make terminals do without.
        mount("devpts", root + "/dev/pts", "devpts", _NOSUID | _NOEXEC, "newinstance,ptmxmode=0666,mode=620")


def skeleton(lower, upper, depth):
    """Make the folders of `lower` in the writable layer too, which makes them the episode's own to write into."""
    os.makedirs(upper, exist_ok=True)
    if depth == 0:
        return
    try:
        entries = list(os.scandir(lower))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            target = upper + "/" + entry.name
            skeleton(entry.path, target, depth - 1)
            os.chmod(target, stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode) & 0o1777 | 0o700)


def overlay(lower, scratch, target):
    """Mount a writable layer over a folder."""
    for character in "\\:,":
        lower = lower.replace(character, "\\" + character)
    options = f"lowerdir={lower},upperdir={scratch}/upper,workdir={scratch}/work,userxattr"
    mount("overlay", target, "overlay", _NOSUID | _NODEV, options)


def copy_settings(source, target, left):
    """Copy links, folders and small files that everybody may read."""
    try:
        state = os.lstat(source)
        if stat.S_ISLNK(state.st_mode):
            os.symlink(os.readlink(source), target)
        elif stat.S_ISDIR(state.st_mode):
            os.mkdir(target)
            for name in os.listdir(source):
                copy_settings(source + "/" + name, target + "/" + name, left)
        elif stat.S_ISREG(state.st_mode) and state.st_mode & 0o004 and state.st_size <= min(_COPIED_BYTES, left[0]):
            left[0] -= state.st_size
            shutil.copyfile(source, target)
            os.chmod(target, 0o644)
    except OSError:
        # What is not there, or may not be read, is not needed.
        pass


def add_line(path, line, start):
    """Append a line to a file of the episode's own; make it if missing."""
    missing = not os.path.exists(path)
    with open(path, "a") as file:
        file.write((start if missing else "") + line)


def write(path, text):
    """Write a text file."""
    with open(path, "w") as file:
        file.write(text)


def install_filter(program):
    """Put the system-call filter where bubblewrap will read it."""
    fd = os.memfd_create("filter")
    os.write(fd, program)
    os.lseek(fd, 0, os.SEEK_SET)
    os.dup2(fd, _SECCOMP_FD, inheritable=True)


def mount(source, target, kind, flags, options):
    """Call mount(2)."""
    words = [word.encode() if word is not None else None for word in (source, target, kind, options)]
    check(_LIBC.mount(words[0], words[1], words[2], flags, words[3]), f"mount {kind} on {target}")


def check(result, what):
    """Raise what the C library noted."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
