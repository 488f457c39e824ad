"""Counts XLA programs built in this process: the proof that nothing recompiles after warm-up."""

from __future__ import annotations

import jax.monitoring

_EVENT = "/jax/core/compile/backend_compile_duration"  # also recorded when the program comes from the disk cache
_count = 0
_listening = False


def compiled_programs() -> int:
    """Programs compiled, or loaded from the compilation cache, since the first call in this process."""
    global _listening
    if not _listening:
        jax.monitoring.register_event_duration_secs_listener(_note)
        _listening = True
    return _count


def _note(event: str, duration: float, **_: object) -> None:
    global _count
    _count += event == _EVENT
