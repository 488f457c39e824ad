#!/usr/bin/env bash
# Set up the environment and run the main job: a base model, GRPO at the full budget, BudgetMix, their evaluations, what
# reinforcement learning changed in them, and one report. Works from any directory; a run that was cut off goes on where it stopped.
#
#   bash launch/quickstart.sh
#
#   OUT  where the runs go (default runs/quickstart in the project)
#   PYTHON, JAXRL_EXTRAS, JAXRL_VENV: see setup_env.sh
set -euo pipefail
[ -z "${OUT:-}" ] || { mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd); }
# shellcheck source=launch/setup_env.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup_env.sh"
OUT=${OUT:-$PROJECT/runs/quickstart}

# stage NAME SCRIPT FLAG...
stage() {
  local name=$1 began=$SECONDS
  shift
  say "$name: python launch/$*"
  (cd "$PROJECT" && "$VENV_PYTHON" launch/"$@")
  say "$name: done in $((SECONDS - began)) s"
}

say "set-up"
setup_env
say "set-up: done in $SECONDS s"
stage base train.py --config=configs/frozenlake_base.py --run_dir="$OUT/base" --resume
stage grpo train.py --config=configs/frozenlake_grpo.py --run_dir="$OUT/grpo" --init=run:"$OUT/base" --resume
stage budgetmix train.py --config=configs/frozenlake_budgetmix.py --run_dir="$OUT/budgetmix" --init=run:"$OUT/base" --resume
for run in base grpo budgetmix; do
  stage "evaluation of $run" evaluate.py --run_dir="$OUT/$run" --reuse
done
stage analysis analyze.py --base="$OUT/base" --policy="$OUT/grpo,$OUT/budgetmix" --out="$OUT/analysis" --reuse
stage report report.py --runs="base=$OUT/base,grpo=$OUT/grpo,budgetmix=$OUT/budgetmix" --analysis="$OUT/analysis" \
  --out="$OUT/report.html"
say "all done in $SECONDS s: open $OUT/report.html"
