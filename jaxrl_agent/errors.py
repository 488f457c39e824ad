"""Errors that a user can act on: each says the rule, the value that broke it, and the remedy."""

from __future__ import annotations

_NO_VALUE = object()


class JaxrlError(Exception):
    """Base class of every error this package raises on purpose.

    Args:
        rule: what must hold, as a full clause ("group size must be at least 2").
        value: what was found instead; shown with `repr`. Left out when there is none.
        remedy: what the reader can do about it, in the imperative.
    """

    def __init__(self, rule: str, *, value: object = _NO_VALUE, remedy: str = ""):
        self.rule, self.value, self.remedy = rule, value, remedy
        found = "" if value is _NO_VALUE else f"; got {value!r}"
        super().__init__(f"{rule}{found}." + (f" {remedy}" if remedy else ""))


class ConfigError(JaxrlError, ValueError):
    """A setting that is unknown, of the wrong type, or out of range."""


class ArgumentError(JaxrlError, ValueError):
    """An argument of a public function that breaks its contract."""


class WeightsError(JaxrlError, ValueError):
    """A weights folder with missing, extra, misshapen or unreadable tensors."""


class CheckpointError(JaxrlError, RuntimeError):
    """A checkpoint that is absent, incomplete, or belongs to another configuration."""


class TokenizerError(JaxrlError, ValueError):
    """A tokenizer that cannot be found or lacks a token that the task needs."""


class MapError(JaxrlError, ValueError):
    """A FrozenLake map, or a map setting, that cannot be played."""


class DataError(JaxrlError, FileNotFoundError):
    """Task data that were not found anywhere they are looked for."""


class RunError(JaxrlError, RuntimeError):
    """A run directory that lacks a file or holds a malformed one."""


class NonFiniteError(JaxrlError, FloatingPointError):
    """Too many updates in a row produced a loss or a gradient that is not finite."""


class SandboxError(JaxrlError, RuntimeError):
    """A sandbox that could not be started, died by itself, or broke its protocol: never the fault of what ran in it."""
