"""Sandboxes for what models write: programs, SQL, tool calls, shell commands.

A caller talks to one supervisor process; the supervisor keeps pre-warmed single-use sandboxes (bubblewrap: namespaces,
a read-only view, a system-call filter) whose process 1 forks once for each test. Limits are enforced from outside.
"""

from __future__ import annotations

from jaxrl_agent.sandbox.access import configure, metrics, probe, running, shutdown
from jaxrl_agent.sandbox.judge import ajudge_program, judge_program, judge_programs
from jaxrl_agent.sandbox.programs import arun_program, run_program, run_programs
from jaxrl_agent.sandbox.results import CaseVerdict, Limits, Reply, Result, Status, Verdict
from jaxrl_agent.sandbox.shell import Shell, open_shell
from jaxrl_agent.sandbox.shell_verify import verify
from jaxrl_agent.sandbox.worker import Worker, open_worker

__all__ = [
    "CaseVerdict",
    "Limits",
    "Reply",
    "Result",
    "Shell",
    "Status",
    "Verdict",
    "Worker",
    "ajudge_program",
    "arun_program",
    "configure",
    "judge_program",
    "judge_programs",
    "metrics",
    "open_shell",
    "open_worker",
    "probe",
    "run_program",
    "run_programs",
    "running",
    "shutdown",
    "verify",
]
