# shellcheck shell=bash
# Sourced by quickstart.sh and test.sh. `setup_env [EXTRA...]` finds a Python, makes .venv, installs the pinned
# versions with the extras, and sets VENV_PYTHON. Running it again costs a moment; an unfinished .venv is made anew.
#
#   PYTHON        interpreter to use (3.11 to 3.13); found by itself otherwise
#   JAXRL_EXTRAS  more extras of pyproject.toml, separated by commas or blanks (parity, cuda12, cuda13, tpu)
#   JAXRL_VENV    where the environment lies; PROJECT/.venv by default

PROJECT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV=${JAXRL_VENV:-$PROJECT/.venv}
VENV_PYTHON=$VENV/bin/python
SUPPORTED="3.11 3.12 3.13"

say() { printf '[jaxrl_agent] %s\n' "$*" >&2; }
fail() { say "$@"; exit 1; }

# Prints X.Y; fails when the interpreter does not start, as a pyenv shim of an unselected version does not.
python_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

# Why an interpreter can not be used; nothing when it can.
python_fault() {
  local version
  version=$(python_version "$1") || { echo "does not run"; return; }
  case " $SUPPORTED " in *" $version "*) ;; *) echo "is Python $version"; return ;; esac
  "$1" -c 'import venv, ensurepip' 2>/dev/null ||
    echo "has no venv module (Debian and Ubuntu: apt-get install python$version-venv)"
}

# Sets PYTHON to the first interpreter that can be used, or says what was wrong with each.
find_python() {
  local candidate fault faults=""
  if [ -n "${PYTHON:-}" ]; then
    fault=$(python_fault "$PYTHON")
    [ -z "$fault" ] || fail "PYTHON=$PYTHON $fault; Python 3.11, 3.12 or 3.13 with venv is needed."
    return
  fi
  while IFS= read -r candidate; do
    [ -x "$candidate" ] || continue
    fault=$(python_fault "$candidate")
    [ -z "$fault" ] && { PYTHON=$candidate; return; }
    faults+=$'\n'"    $candidate $fault"
  done < <(type -aP python3.11 python3.12 python3.13 python3 python || true
           ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[123].*/bin/python 2>/dev/null)
  fail "Python 3.11, 3.12 or 3.13 with venv is needed; set PYTHON=/path/to/python3.1x. Tried:${faults:- nothing found}"
}

# Reads what an environment depends on: interpreter version, place, requirements, pins.
inputs_hash() {
  { echo "$1 $PROJECT"; cat "$PROJECT/pyproject.toml" "$PROJECT/constraints/py${1/./}.txt"; } | cksum
}

# True when the environment's Python starts, is a supported one and, if the user chose one, that one.
venv_usable() {
  local version wanted
  [ ! -e "$VENV/.jaxrl-unfinished" ] && version=$(python_version "$VENV_PYTHON") || return 1
  "$VENV_PYTHON" -m pip --version >/dev/null 2>&1 || return 1
  case " $SUPPORTED " in *" $version "*) ;; *) return 1 ;; esac
  [ -z "${PYTHON:-}" ] && return
  wanted=$(python_version "$PYTHON") || fail "PYTHON=$PYTHON does not run."
  [ "$version" = "$wanted" ]
}

make_venv() {
  find_python
  if [ -e "$VENV" ]; then
    # Never delete a folder that is not an environment.
    [ -e "$VENV/pyvenv.cfg" ] || [ -e "$VENV/.jaxrl-unfinished" ] || rmdir "$VENV" 2>/dev/null ||
      fail "$VENV exists and is no virtual environment: move it away, or set JAXRL_VENV."
    say "$VENV is unfinished or of another Python: making it anew"
    rm -rf "$VENV"
  fi
  say "making $VENV with $PYTHON (Python $(python_version "$PYTHON"))"
  mkdir -p "$VENV" && : >"$VENV/.jaxrl-unfinished"
  "$PYTHON" -m venv "$VENV" || fail "'$PYTHON -m venv' failed (see above); on Debian and Ubuntu: apt-get install python3-venv"
}

install_packages() {
  local version=$1 extras=$2 hash=$3
  say "installing jaxrl_agent${extras:+[$extras]} with the versions of constraints/py${version/./}.txt (some minutes the first time)"
  : >"$VENV/.jaxrl-unfinished"
  "$VENV_PYTHON" -m pip install -qq --disable-pip-version-check --constraint "$PROJECT/constraints/py${version/./}.txt" \
    --editable "$PROJECT${extras:+[$extras]}" || fail "the installation failed (see above); run the command again to retry"
  printf '%s\n%s\n' "$hash" "$extras" >"$VENV/.jaxrl-installed"
  rm -f "$VENV/.jaxrl-unfinished"
}

setup_env() {
  local version hash wanted present="" extras
  mkdir -p "$PROJECT/.cache"
  if command -v flock >/dev/null; then # two scripts started at once must not build one environment
    exec 9>"$PROJECT/.cache/setup.lock"
    flock 9
  fi
  venv_usable || make_venv
  version=$(python_version "$VENV_PYTHON")
  hash=$(inputs_hash "$version") || fail "there are no pinned versions for Python $version"
  [ -e "$VENV/.jaxrl-installed" ] && present=$(sed -n 2p "$VENV/.jaxrl-installed")
  wanted="$* ${JAXRL_EXTRAS:-} $present"
  extras=$(tr -s ', ' '\n' <<<"$wanted" | sed '/^$/d' | sort -u | paste -sd, -)
  if [ "$(cat "$VENV/.jaxrl-installed" 2>/dev/null)" != "$(printf '%s\n%s' "$hash" "$extras")" ]; then
    install_packages "$version" "$extras" "$hash"
  fi
  if command -v flock >/dev/null; then exec 9>&-; fi
}

# The compilation cache is shared by all runs of the project; small programs are worth storing too.
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$PROJECT/.cache/jax}
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=${JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS:-0}
export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=${JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES:--1}
