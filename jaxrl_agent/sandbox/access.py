"""The process-wide supervisor: settings, start with a probe, restart, end."""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from typing import Any

from jaxrl_agent.errors import SandboxError
from jaxrl_agent.sandbox import probing
from jaxrl_agent.sandbox.client import Client, Settings

_lock = threading.RLock()
_settings = Settings()
_client: Client | None = None
_proven: probing.Probe | None = None


def configure(**changes: Any) -> Settings:
    """Change how programs are run from now on; a running supervisor is ended first.

    Args:
        **changes: fields of `client.Settings`; those not named go back to their defaults.

    Returns:
        The settings that hold now.
    """
    global _settings, _proven
    settings = Settings(**changes)
    with _lock:
        shutdown()
        _settings, _proven = settings, None
    return settings


def connect() -> Client:
    """Give the running client; start one, and probe what it isolates, if there is none.

    Raises:
        SandboxError: no tier of at least `min_tier` works here; the message names the step that failed and a remedy.
    """
    global _client, _proven
    with _lock:
        if _client is not None and _client.alive:
            return _client
        if _client is not None:
            _client.close()
            _client = None
        if _settings.unsafe:
            warnings.warn("programs written by models run WITHOUT a sandbox (unsafe=True)", stacklevel=3)
        if _proven is not None:
            _client = Client(_settings, _proven.tier)
        else:
            _client, _proven = _first(_settings)
        return _client


def probe() -> probing.Probe:
    """Say which tier this process runs under, and what was tried to find out.

    Raises:
        SandboxError: no tier of at least `min_tier` works here.
    """
    with _lock:
        connect()
        return _proven


def running() -> bool:
    """Whether this process has a supervisor at work."""
    return _client is not None and _client.alive


def metrics() -> dict[str, Any]:
    """Give the supervisor's counters: latencies, queue, verdict shares, processes, descriptors, memory, canaries."""
    return connect().request("metrics").result()["metrics"]


def shutdown() -> None:
    """End the supervisor and every sandbox; the next use starts them anew."""
    global _client
    with _lock:
        if _client is not None:
            _client.close()
            _client = None


def _first(settings: Settings) -> tuple[Client, probing.Probe]:
    tiers = ["none"] if settings.unsafe else ["ns", "lsm"] if settings.min_tier == "lsm" else ["ns"]
    for tier in tiers:
        client = None
        try:
            client = Client(settings, tier)
            return client, probing.run(client)
        except (SandboxError, OSError) as error:
            if client is not None:
                client.close()
            if tier == tiers[-1]:
                if isinstance(error, SandboxError):
                    raise
                raise SandboxError("the sandbox supervisor must start", value=str(error)) from error
    raise AssertionError("unreachable")


def _after_fork() -> None:
    global _client, _lock
    _lock = threading.RLock()
    if _client is not None:
        _client.abandon()
        _client = None


atexit.register(shutdown)
os.register_at_fork(after_in_child=_after_fork)
