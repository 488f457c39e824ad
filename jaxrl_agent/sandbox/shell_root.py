"""The root and the command line of a shell episode's sandbox."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib

from jaxrl_agent.sandbox import bubblewrap, seccomp
from jaxrl_agent.sandbox.bubblewrap import Profile
from jaxrl_agent.sandbox.launch import Launcher

MOST_FILES = 50_000
# Users that no pool's sandboxes have.
SHELL_UIDS = 65100
_HERE = pathlib.Path(__file__).parent
_CONTROL, _BUNDLE, _SECCOMP, _INFO = 3, 4, 5, 6
_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
# Process 1 of an episode: its modules come on a descriptor, so that its command line stays short.
_PROCESS_1 = """
import json, os, sys, types
control, bundle = int(sys.argv[1]), int(sys.argv[2])
texts = json.loads(os.pread(bundle, os.fstat(bundle).st_size, 0))["modules"]
os.closerange(max(control, bundle) + 1, 1024)
os.close(bundle)
for name, text in texts.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name + ".py", "exec", dont_inherit=True), module.__dict__)
sys.modules["shell"].main(control)
"""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the root of an episode is.

    Attributes:
        base: prepared root file system; None for the host's /usr and harmless settings.
        disk_mb: MiB that the episode may write, all places together.
        workdir, home: folders made for the episode.
        sockets: whether sockets may be opened; only the loopback device of the episode's own is behind them.
        proc: whether to mount /proc, where the host lets it.
        binds: (path outside, path inside) of what is shown read-only.
    """

    base: str | None = None
    disk_mb: int = 64
    workdir: str = "/app"
    home: str = "/home/user"
    sockets: bool = False
    proc: bool = True
    binds: tuple[tuple[str, str], ...] = ()


class ShellLauncher(Launcher):
    """Starts the sandboxes of shell episodes: the same user, limits and groups, but a root that can be written to."""

    def __init__(self, *, plan: Plan, run_folder: str, bwrap: str, cgroups: bool):
        super().__init__(tier="ns", bwrap=bwrap, run_folder=run_folder, cgroups=cgroups)
        self._uid_base = SHELL_UIDS
        self.plan = plan
        self._mount = (_HERE / "shell_mount.py").read_text()
        # A prepared root brings an interpreter of its own.
        self._inner = self.interpreter if plan.base is None else bubblewrap.SYSTEM_PYTHON

    def _files(self) -> dict:
        names = ("shell_files", "shell")
        return {"modules": {name: (_HERE / "inside" / f"{name}.py").read_text() for name in names}}

    def _command(self, profile: Profile, uid: int, gid: int, scratch: str | None) -> list[str]:
        plan = self.plan
        place = os.path.join(self._folder, "root")
        os.makedirs(place, exist_ok=True)
        os.chmod(place, 0o755)
        inner = [self._inner, "-I", "-S", "-c", _PROCESS_1, str(_CONTROL), str(_BUNDLE)]
        root = {
            "scratch": place,
            "base": plan.base,
            "disk_mb": plan.disk_mb,
            "inodes": MOST_FILES,
            "workdir": plan.workdir,
            "home": plan.home,
            "seccomp": seccomp.assemble(sockets=plan.sockets, kill=False).hex(),
            "command": self._bwrap(place, uid, gid, inner),
        }
        return [self.interpreter, "-I", "-S", "-c", self._mount, json.dumps(root)]

    def _bwrap(self, place: str, uid: int, gid: int, command: list[str]) -> list[str]:
        plan = self.plan
        words = [self.bwrap, "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
        words += ["--unshare-cgroup-try", "--disable-userns", "--new-session", "--die-with-parent", "--as-pid-1"]
        words += ["--cap-drop", "ALL", "--uid", str(uid), "--gid", str(gid), "--hostname", "sandbox"]
        words += ["--bind", f"{place}/root", "/"]
        if plan.base is None:
            for name in _MERGED:
                if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}"):
                    words += ["--ro-bind", f"/{name}", f"/{name}"]
            if self._prefix is not None:
                words += ["--ro-bind", self._prefix, self._prefix]
        for name in _DEVICES:
            words += ["--dev-bind-try", f"/dev/{name}", f"/dev/{name}"]
        # A plain bind makes device files below it unusable, terminals among them.
        words += ["--dev-bind", f"{place}/root/dev/pts", "/dev/pts"]
        words += ["--proc", "/proc"] if plan.proc else []
        for source, target in plan.binds:
            words += ["--ro-bind", source, target]
        words += ["--chdir", "/", "--clearenv"]
        for name, value in bubblewrap.environment().items():
            words += ["--setenv", name, value]
        return [*words, "--seccomp", str(_SECCOMP), "--info-fd", str(_INFO), "--", *command]
