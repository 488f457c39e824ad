"""Files in and out of a shell episode, by process 1: never through a link, never more than asked for."""

from __future__ import annotations

import os
import stat

MOST_DEPTH = 32


class Collector:
    """Copies regular files, never through a link, up to given sizes."""

    def __init__(self, out, order):
        self.out, self.size, self.files, self.refused = out, 0, [], {}
        self.most_bytes, self.most_total, self.most_files = order["file_bytes"], order["total_bytes"], order["files"]

    def take(self, path):
        """Copy a file, or the files below a folder."""
        parts = path.strip("/").split("/")
        if parts[0] in ("proc", "sys", "dev"):
            self.refused[path] = "not a place for files"
            return
        opened = []
        try:
            opened.append(os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            for part in parts[:-1]:
                flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                opened.append(os.open(part, flags, dir_fd=opened[-1]))
            self.enter(opened[-1], parts[-1], path, 0)
        except OSError as error:
            self.refused[path] = error.strerror
        finally:
            for fd in opened:
                os.close(fd)

    def enter(self, folder, name, path, depth):
        """Copy one entry of a folder."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder)
        except OSError as error:
            self.refused[path] = error.strerror
            return
        try:
            state = os.fstat(fd)
            if stat.S_ISDIR(state.st_mode):
                if depth == MOST_DEPTH:
                    self.refused[path] = "too deep"
                    return
                for entry in sorted(os.listdir(fd)):
                    if len(self.files) + len(self.refused) > 2 * self.most_files:
                        return
                    self.enter(fd, entry, path.rstrip("/") + "/" + entry, depth + 1)
            elif not stat.S_ISREG(state.st_mode):
                self.refused[path] = "not a regular file"
            elif state.st_size > self.most_bytes or self.size + state.st_size > self.most_total:
                self.refused[path] = "too large"
            elif len(self.files) >= self.most_files:
                self.refused[path] = "too many files"
            else:
                size = copy(fd, 0, self.out, state.st_size)
                self.files.append((path, size, stat.S_IMODE(state.st_mode) & 0o777))
                self.size += size
        finally:
            os.close(fd)


def copy(source, at, target, size):
    """Copy up to `size` bytes from a place of one descriptor to another; give how many there were."""
    done = 0
    while done < size:
        block = os.pread(source, min(size - done, 1 << 20), at + done)
        if not block:
            break
        write_all(target, block)
        done += len(block)
    return done


def write_all(fd, data):
    """Write all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
