"""What all launchers share: one-line errors, config files by path or name, and the compilation cache."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import app

from jaxrl_agent.errors import ConfigError, JaxrlError

PROJECT = Path(__file__).resolve().parent.parent


def run_main(main: Callable[[Sequence[str]], None]) -> None:
    """Run an absl main; an error that the user can act on becomes one line on stderr and exit code 1."""

    def guarded(arguments: Sequence[str]) -> int:
        if len(arguments) > 1:
            raise app.UsageError(f"unexpected argument {arguments[1]!r}; flags begin with --")
        try:
            main(arguments)
        except JaxrlError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        return 0

    app.run(guarded, argv=[sys.argv[0], *map(_resolve_config_flag, sys.argv[1:])])


def find_config(path: str) -> str:
    """Look a config file up in the working directory, then in the project.

    Raises:
        ConfigError: neither holds it.
    """
    for candidate in (Path(path).expanduser(), PROJECT / path):
        if candidate.is_file():
            return str(candidate.resolve())
    known = ", ".join(f"configs/{file.name}" for file in sorted((PROJECT / "configs").glob("*.py")))
    raise ConfigError("the config file must exist", value=path, remedy=f"The project has {known}.")


def use_compilation_cache() -> None:
    """Keep compiled programs on disk, small ones too; JAX_COMPILATION_CACHE_DIR moves them."""
    import jax

    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(Path.home() / ".cache" / "jaxrl_agent" / "xla"))
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _resolve_config_flag(argument: str) -> str:
    name, separator, value = argument.partition("=")
    if name.lstrip("-") != "config" or not separator:
        return argument
    try:
        return f"{name}={find_config(value)}"
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
