#!/usr/bin/env bash
# Pins the dependencies: every file carries the hashes of all platforms' wheels for Python 3.11
# and newer, and names no package index. Pins that still fit are kept; UPGRADE=1 renews all.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-lock
if [ ! -x "$venv/bin/uv" ]; then
  "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet uv==0.13.9
fi

# lock FILE EXTRA... : pin the package's dependencies with these extras into FILE.
lock() {
  local file=$1 extras=()
  shift
  for extra in "$@"; do extras+=(--extra "$extra"); done
  "$venv/bin/uv" pip compile pyproject.toml "${extras[@]}" ${UPGRADE:+--upgrade} \
    --universal --python-version 3.11 --fork-strategy fewest \
    --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate \
    --custom-compile-command "make lock" --quiet --output-file "$file"
  # Torch and its CUDA parts are left to the machine: a CPU build here, another one there.
  if grep -q '^torch==' "$file"; then
    awk '/^[a-z0-9]/ { keep = !/^(torch|triton|cuda-[a-z]+|nvidia-[a-z0-9-]+)==/ } /^#/ || keep' \
      "$file" >"$file.new"
    { echo "# needs torch"; cat "$file.new"; } >"$file"
    rm "$file.new"
  fi
  echo "$file: $(grep -c '==' "$file") packages"
}

# beside FILE PACKAGE... : add packages to FILE, and nothing of what they ask for.
beside() {
  local file=$1
  shift
  printf '%s\n' "$@" | "$venv/bin/uv" pip compile - --no-deps \
    --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
    --no-annotate --no-header --quiet >>"$file"
}

lock constraints.txt server postgres tensorboard mlflow dev docs
lock constraints-ray.txt ray server test
lock constraints-trl.txt trl lightning lab keras rlhf-code server test
beside constraints-trl.txt verl==0.9.1 openrlhf==0.11.2
lock constraints-trackers.txt trackers server test
