#!/usr/bin/env bash
# Set up the environment and run the linter and the tests, from any directory.
#
#   bash launch/test.sh [pytest arguments]      e.g. tests/models, -k tokenizer, -m slow; paths from the project's root
#
#   JAXRL_TEST_WORKERS  processes that share the tests (default 2; 0 = no extra process)
#   JAXRL_DATA_DIR      folder with the task data; tests that need it are skipped without it
#   PYTHON, JAXRL_EXTRAS, JAXRL_VENV: see setup_env.sh
set -euo pipefail
[ -z "${JAXRL_DATA_DIR:-}" ] || JAXRL_DATA_DIR=$(cd "$JAXRL_DATA_DIR" && pwd)
# shellcheck source=launch/setup_env.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup_env.sh"
setup_env test
cd "$PROJECT"
"$VENV_PYTHON" -m ruff check .
exec "$VENV_PYTHON" -m pytest -n "${JAXRL_TEST_WORKERS:-2}" --dist loadfile "$@"
