#!/usr/bin/env bash
# Makes the environment, or sees that it is there.
#
#   scripts/setup.sh VENV
#
# VENV is made with Python 3.11 or 3.12 and gets the plugin (editable) with its development tools, in the tested versions of
# constraints.txt. Nothing happens while setup.py and constraints.txt are unchanged since. An environment that somebody else made
# (it exists, and is not the checkout's own .venv) is checked and never changed.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${1:?usage: scripts/setup.sh VENV}
[[ $VENV = /* ]] || VENV=$PWD/$VENV
STAMP=$VENV/.fairseq-gad

suitable_python() {
    local name
    for name in python3.11 python3.12 python3; do
        if "$name" -c 'import sys; sys.exit(sys.version_info[:2] not in {(3, 11), (3, 12)})' 2> /dev/null; then
            echo "$name"
            return
        fi
    done
    echo "error: neither Python 3.11 nor 3.12 is on the PATH; install one of them, or name an environment: make VENV=FOLDER" >&2
    return 1
}

if [ -x "$VENV/bin/python" ] && [ ! -e "$STAMP" ] && [ "$VENV" != "$ROOT/.venv" ]; then
    "$VENV/bin/python" - "$VENV" <<'PY'
import sys
from importlib.metadata import PackageNotFoundError, version

needed = "torch numpy hydra-core omegaconf sacrebleu sacremoses subword-nmt tqdm numba pytest pytest-xdist hypothesis".split()
missing = []
for name in needed:
    try:
        version(name)
    except PackageNotFoundError:
        missing.append(name)
try:
    import fairseq  # noqa: F401
except ImportError:
    missing.append("fairseq")
if missing:
    folder = sys.argv[1]
    sys.exit(
        f"error: {folder} lacks {', '.join(missing)}; "
        f"mend it with: {folder}/bin/pip install -e '.[dev]' -c constraints.txt"
    )
PY
    exit 0
fi

# The folder is part of what the stamp says: the editable installation points into this checkout.
WANTED=$(echo "$ROOT"; cat "$ROOT/setup.py" "$ROOT/constraints.txt")
if [ -e "$STAMP" ] && [ "$(cat "$STAMP")" = "$WANTED" ]; then
    exit 0
fi
if [ ! -x "$VENV/bin/python" ]; then
    PYTHON=$(suitable_python)
    echo "making $VENV with $("$PYTHON" --version)"
    "$PYTHON" -m venv "$VENV" || {
        rm -rf "$VENV"
        echo "error: $PYTHON cannot make a virtual environment here; on Debian and Ubuntu: apt-get install $PYTHON-venv" >&2
        exit 1
    }
    touch "$STAMP"
fi
echo "installing the plugin and its tools into $VENV (some minutes the first time)"
# Python compiles what is imported when it is: all packages at once would take half of the installation's time.
"$VENV/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check -e "$ROOT[dev]" -c "$ROOT/constraints.txt"
echo "$WANTED" > "$STAMP"
