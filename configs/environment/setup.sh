#!/usr/bin/env bash
# Sets up .venv from the pinned list. Safe to interrupt and to repeat: the stamp is written last, and until it
# is there everything is checked again. Usage: configs/environment/setup.sh   (from anywhere)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

lock=configs/environment/cpu.lock.txt
python=${PYTHON:-python3.11}
stamp=.venv/.specfleet-ready
pip=(.venv/bin/python -m pip --disable-pip-version-check install --quiet --no-deps)

if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
  if ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
    echo "specfleet needs Python 3.11 and found none as '$python'. Install it, or name it: make run PYTHON=/path/to/python3.11" >&2
    exit 1
  fi
  echo "making .venv"
  rm -rf .venv # half of one, from an interrupted start
  "$python" -m venv .venv
fi
rm -f "$stamp"

# The CPU build of torch is not on the public package registry under that name. Some mirrors have it, so the
# plain way comes first; where that fails, PyTorch's own index for CPU builds is the only source.
torch=$(grep '^torch==' "$lock")
echo "installing $torch"
if ! "${pip[@]}" "$torch" 2>/dev/null; then
  "${pip[@]}" "$torch" --index-url https://download.pytorch.org/whl/cpu
fi

echo "installing $(grep -c '==' "$lock") pinned packages"
"${pip[@]}" --requirement "$lock"
# setuptools is in the list, so building needs no second environment and no network.
"${pip[@]}" --no-build-isolation --editable .
touch "$stamp"
