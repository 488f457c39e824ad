"""Several processes of one program on one machine, for tests of what pods do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
_SECONDS = 300


def start(code: str, *arguments: object, devices: int, **variables: object) -> subprocess.Popen:
    """Run Python code in a process of its own.

    Args:
        code: the program.
        arguments: of its command line.
        devices: CPU devices that it sees.
        variables: of its environment, beside this process's own.
    """
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, **{name: str(value) for name, value in variables.items()}}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run_together(code: str, *arguments: object, devices: int) -> list[str]:
    """Run the same code in two processes that find each other; what each printed.

    Args:
        code, arguments: see `start`.
        devices: CPU devices that each of them sees.
    """
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    place = {"JAX_COORDINATOR_ADDRESS": f"localhost:{port}", "JAX_NUM_PROCESSES": 2}
    processes = [start(code, *arguments, devices=devices, JAX_PROCESS_ID=number, **place) for number in range(2)]
    try:
        results = [process.communicate(timeout=_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, results, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return [out for out, _ in results]
