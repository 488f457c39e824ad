"""Measure throughput, everything of a suite side by side in one run.

taskset -c 0 python launch/benchmark.py --suite=envs --peers --out=benchmarks/envs.jsonl
python launch/benchmark.py --suite=all --out=benchmarks/all.jsonl

Prints a line for each contestant and appends it to FILE.jsonl with versions, device, cores and load: median, lowest
and highest of the rounds, and the ratio to each yardstick, round against the same round. On the CPU rates are by CPU
seconds of the process, so a busy machine disturbs them least. --peers needs the peers' packages (gymnasium for envs)
and goes on without those that are missing.
"""

from pathlib import Path

from absl import flags

from jaxrl_agent import command_line
from jaxrl_agent.benchmark.suites import SUITES, append, run_suites, to_text

_SUITE = flags.DEFINE_enum("suite", "all", ["all", *SUITES], "what to measure")
_PEERS = flags.DEFINE_bool("peers", False, "also other packages, where they are installed")
_ROUNDS = flags.DEFINE_integer("rounds", 7, "how often everything runs after its warm-up", lower_bound=1)
_OUT = flags.DEFINE_string("out", None, "FILE.jsonl to append to")
flags.mark_flag_as_required("out")


def main(_: list[str]) -> None:
    """Read flags, measure, print and append."""
    command_line.start()
    out = Path(_OUT.value).expanduser().resolve()
    names = list(SUITES) if _SUITE.value == "all" else [_SUITE.value]
    for line in run_suites(names, peers=_PEERS.value, rounds=_ROUNDS.value):
        append(out, line)
        print(to_text(line), flush=True)
    missing = ", ".join(line["peers_missing"])
    print(f"benchmark: {out}" + (f" (without {missing}, not installed)" if missing else ""))


if __name__ == "__main__":
    command_line.run_main(main)
