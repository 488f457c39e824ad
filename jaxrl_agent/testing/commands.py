"""Launchers run in the calling process, which shares compiled programs: what a command prints and how it ends."""

from __future__ import annotations

import dataclasses
import runpy
import sys
from pathlib import Path

import pytest
from absl import app, flags, logging

from jaxrl_agent import command_line  # noqa: F401  its flags belong to every command, and are not forgotten with one
from jaxrl_agent.testing.small import small_preset

LAUNCH = Path(__file__).resolve().parents[2] / "launch"


@dataclasses.dataclass(frozen=True)
class Result:
    """What a command left on the terminal."""

    code: int | str
    out: str
    err: str


class Launcher:
    """Runs `python launch/NAME.py FLAGS...` and forgets its flags afterwards."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
        app.define_help_flags()  # once for all commands
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, name: str, *arguments: object) -> Result:
        """Run one command to its end."""
        script = str(LAUNCH / f"{name}.py")
        self._monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        known, verbosity = set(flags.FLAGS), logging.get_verbosity()
        try:
            with small_preset(), pytest.raises(SystemExit) as caught:
                runpy.run_path(script, run_name="__main__")
        finally:
            flags.FLAGS.remove_flag_values(set(flags.FLAGS) - known)
            flags.FLAGS.unparse_flags()
            logging.set_verbosity(verbosity)
        return Result(caught.value.code or 0, *self._capsys.readouterr())


def assert_one_line_error(result: Result, *words: str) -> None:
    """Check that a command ended with exit code 1 and one line on stderr that holds `words`."""
    assert result.code == 1
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    for word in words:
        assert word in result.err
