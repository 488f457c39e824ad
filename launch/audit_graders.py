"""Audit a task's grader: gold answers must pass; doing nothing and a battery of cheats must fail.

python launch/audit_graders.py --task=deepcoder
python launch/audit_graders.py --task=deepcoder --source=mbpp --split=test --limit=100 --out=audit.json

Prints how many of each kind of program passed, then every problem that nobody can pass (its own solution fails), every
one that can be passed without solving it, with the cheat that did, and every one whose hidden tests alone can. Exit
code 1 if there is one of the first two kinds, or if a program could not be checked.
"""

from pathlib import Path

from absl import flags

from jaxrl_agent import audit, command_line
from jaxrl_agent.config.sections import CODING_SOURCES
from jaxrl_agent.run_dir import collect_versions, write_json
from jaxrl_agent.sandbox import Limits
from jaxrl_agent.tasks.coding.splits import SPLITS

_TASK = flags.DEFINE_enum("task", None, ["deepcoder"], "whose grader")
_SOURCE = flags.DEFINE_enum("source", "own", CODING_SOURCES, "where problems come from")
_SPLIT = flags.DEFINE_enum("split", "all", ["all", *SPLITS], "which problems")
_PATH = flags.DEFINE_string("path", "", "file or folder of the problems; empty = the usual places")
_LIMIT = flags.DEFINE_integer("limit", 0, "most problems; 0 = all, 100 a split of templates", lower_bound=0)
_CPU = flags.DEFINE_float("cpu_seconds", Limits.cpu_s, "CPU time that one test may take", lower_bound=0.1)
_OUT = flags.DEFINE_string("out", None, "FILE.json to write")
flags.mark_flag_as_required("task")


def main(_: list[str]) -> None:
    """Read flags, audit, print, write, and fail if the grader does."""
    out = Path(_OUT.value).expanduser().resolve() if _OUT.value else None
    problems = audit.audited_problems(_SOURCE.value, split=_SPLIT.value, limit=_LIMIT.value, path=_PATH.value)
    display = command_line.make_display("plain")
    findings = audit.run_audit(problems, limits=Limits(cpu_s=_CPU.value), say=display.say)
    names = {"task": _TASK.value, "source": _SOURCE.value, "split": _SPLIT.value}
    summary = audit.summarize(findings, problems, **names)
    audit.print_audit(summary)
    if out:
        write_json(out, {**summary, "versions": collect_versions()})
        print(f"audit: {out}")
    if not audit.is_clean(summary):
        raise SystemExit(1)


if __name__ == "__main__":
    command_line.run_main(main)
