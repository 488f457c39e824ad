"""The set-up behind launch/test.sh and launch/quickstart.sh: which Python it takes, when it installs, what it says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
TOOLS = ("bash", "cat", "cksum", "dirname", "ls", "mkdir", "paste", "rm", "rmdir", "sed", "sort", "tr")
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def path_folder(tmp_path):
    """A PATH that holds the script's tools and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        (folder / tool).symlink_to(shutil.which(tool))
    return folder


def write_script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def fake_python(path: Path, version: str, *, venv: bool = True) -> Path:
    """An interpreter that answers the two questions that the set-up asks."""
    return write_script(
        path, f'case "$2" in *version_info*) echo {version} ;; *ensurepip*) {str(venv).lower()} ;; esac'
    )


def run(path_folder: Path, commands: str, **variables: str) -> subprocess.CompletedProcess:
    script = f'set -euo pipefail; . "{PROJECT}/launch/setup_env.sh"; {commands}'
    return subprocess.run(
        [shutil.which("bash"), "-c", script],
        env={"PATH": str(path_folder), "HOME": str(path_folder), **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


# ---- choosing an interpreter


def test_a_shim_that_does_not_run_is_passed_over(path_folder):
    write_script(path_folder / "python3.11", "exit 127")
    fake_python(path_folder / "python3.12", "3.12")
    assert run(path_folder, 'find_python; echo "$PYTHON"').stdout.strip() == str(path_folder / "python3.12")


def test_a_pyenv_version_is_found_behind_its_shims(path_folder):
    inner = fake_python(path_folder / ".pyenv/versions/3.13.0/bin/python", "3.13")
    assert run(path_folder, 'find_python; echo "$PYTHON"').stdout.strip() == str(inner)


def test_every_unfit_interpreter_is_named_with_its_fault(path_folder):
    write_script(path_folder / "python3.13", "exit 127")
    fake_python(path_folder / "python3.12", "3.12", venv=False)
    fake_python(path_folder / "python3", "3.10")
    result = run(path_folder, "find_python")
    assert result.returncode == 1
    assert "python3.13 does not run" in result.stderr
    assert "apt-get install python3.12-venv" in result.stderr
    assert "python3 is Python 3.10" in result.stderr


def test_a_chosen_interpreter_is_taken_or_refused_never_replaced(path_folder):
    fake_python(path_folder / "python3.11", "3.11")
    chosen = fake_python(path_folder / "other", "3.13")
    assert run(path_folder, 'find_python; echo "$PYTHON"', PYTHON=str(chosen)).stdout.strip() == str(chosen)
    fake_python(chosen, "3.14")
    result = run(path_folder, "find_python", PYTHON=str(chosen))
    assert result.returncode == 1
    assert "is Python 3.14" in result.stderr


# ---- making the environment and keeping it

STUBS = 'make_venv() { echo made; }; install_packages() { echo "installs $2"; }; '


@pytest.fixture
def venv(tmp_path):
    """A stand-in for a finished environment that this Python answers for."""
    folder = tmp_path / "venv"
    write_script(folder / "bin/python", f'exec "{sys.executable}" "$@"')
    return folder


def mark_installed(path_folder: Path, venv: Path, extras: str) -> None:
    cksum = run(path_folder, f'inputs_hash "{HERE}"').stdout.strip()
    (venv / ".jaxrl-installed").write_text(f"{cksum}\n{extras}\n")


def test_an_unchanged_environment_is_used_as_it_is(path_folder, venv):
    mark_installed(path_folder, venv, "test")
    assert run(path_folder, STUBS + "setup_env test", JAXRL_VENV=str(venv)).stdout == ""
    assert run(path_folder, STUBS + "setup_env", JAXRL_VENV=str(venv)).stdout == ""


def test_a_new_extra_is_added_to_those_already_there(path_folder, venv):
    mark_installed(path_folder, venv, "test")
    result = run(path_folder, STUBS + "setup_env", JAXRL_VENV=str(venv), JAXRL_EXTRAS="parity, cuda12")
    assert result.stdout == "installs cuda12,parity,test\n"


def test_changed_requirements_are_installed_again(path_folder, venv):
    (venv / ".jaxrl-installed").write_text("123 456\ntest\n")
    assert run(path_folder, STUBS + "setup_env", JAXRL_VENV=str(venv)).stdout == "installs test\n"


def test_an_environment_that_was_cut_off_is_made_anew(path_folder, venv):
    mark_installed(path_folder, venv, "test")
    (venv / ".jaxrl-unfinished").touch()
    assert run(path_folder, STUBS + "setup_env test", JAXRL_VENV=str(venv)).stdout.startswith("made\n")


def test_an_environment_of_another_python_than_the_chosen_one_is_made_anew(path_folder, venv):
    mark_installed(path_folder, venv, "test")
    other = fake_python(path_folder / "other", "3.13" if HERE != "3.13" else "3.12")
    result = run(path_folder, STUBS + "setup_env test", JAXRL_VENV=str(venv), PYTHON=str(other))
    assert result.stdout.startswith("made\n")


def test_a_folder_that_is_no_environment_is_never_deleted(path_folder, tmp_path):
    fake_python(path_folder / "python3.11", "3.11")
    precious = tmp_path / "mine" / "precious.txt"
    precious.parent.mkdir()
    precious.write_text("keep")
    result = run(path_folder, "setup_env", JAXRL_VENV=str(precious.parent))
    assert result.returncode == 1
    assert "is no virtual environment" in result.stderr
    assert precious.read_text() == "keep"


@pytest.mark.parametrize("script", ["launch/test.sh", "launch/quickstart.sh", "launch/setup_env.sh", ".ci/run"])
def test_scripts_are_valid_shell(script):
    assert subprocess.run(["bash", "-n", PROJECT / script], timeout=60).returncode == 0
    assert os.access(PROJECT / script, os.X_OK) or script == "launch/setup_env.sh"
