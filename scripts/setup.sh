#!/usr/bin/env bash
# Create or update .venv with everything that this checkout needs. Changes nothing outside the checkout, except that as root
# on a Debian-like system it installs a missing system library of the embedded MongoDB.
#
#   scripts/setup.sh         for running: both services, local engine, embedded MongoDB
#   scripts/setup.sh dev     the same, plus the tools of scripts/check
#   scripts/setup.sh is_done  does nothing; exit status 0: `run` has nothing to do
#
# Promise: returns in a fraction of a second if nothing changed (a stamp keyed by pyproject.toml and constraints.txt);
# concurrent calls are safe (the second waits); a failed set-up is repeated by the next call.
#
#   PYTHON            CPython (3.11 or newer) that creates .venv; default: the first suitable one
#   TORCH_INDEX_URL   package index of torch, e.g. pytorch.org's CPU index on a machine without an NVIDIA GPU
#   DB_CONNECTION_STRING   a MongoDB of your own: the embedded one is then not needed
set -euo pipefail
case "${1:-run}" in
  run | is_done) extras="sampler,trainer,engine,local" ;;
  dev) extras="sampler,trainer,engine,local,dev" ;;
  *) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'setup %3ds  %s\n' "$SECONDS" "$*" >&2; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# ---------------------------------------------------------------- already done?

key="$(cat pyproject.toml constraints.txt | sha256sum | cut -d' ' -f1)"
is_up_to_date() {  # "dev" contains "run"
  [[ -x .venv/bin/python && -r .venv/setup.stamp ]] || return 1
  local stamp; stamp="$(<.venv/setup.stamp)"
  [[ "$stamp" == "$key $extras" || "$stamp" == "$key $extras,dev" ]]
}
if is_up_to_date; then exit 0; fi
if [[ "${1:-}" == is_done ]]; then exit 1; fi
mkdir -p .venv
if command -v flock >/dev/null; then
  exec 9>.venv/setup.lock
  if ! flock -n 9; then
    say "another set-up of this checkout is running: waiting for it"
    flock 9
    if is_up_to_date; then exit 0; fi
  fi
fi
rm -f .venv/setup.stamp

# ---------------------------------------------------------------- python

fits() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.implementation.name != "cpython" or sys.version_info < (3, 11))' 2>/dev/null; }
if [[ ! -x .venv/bin/python ]]; then
  python=""
  for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
    if fits "$candidate"; then python="$candidate"; break; fi
  done
  [[ -n "$python" ]] || die "no CPython 3.11 or newer with the modules venv and ensurepip was found (looked for ${PYTHON:-python3.11, python3.12, python3.13, python3}).
Install one (Debian, Ubuntu: apt-get install python3 python3-venv) or name one: PYTHON=/path/to/python3.11 $0"
  say "making .venv with $("$python" --version)"
  "$python" -m venv .venv
fi
fits .venv/bin/python || die ".venv/bin/python is $(.venv/bin/python --version 2>&1); expected CPython 3.11 or newer: move .venv away and run this again"

# ---------------------------------------------------------------- packages

pip() {
  .venv/bin/python -m pip --disable-pip-version-check install --quiet --progress-bar off -c constraints.txt "$@" 2>.venv/setup.log \
    || { tail -n 15 .venv/setup.log >&2; die "pip install $* failed; all of its messages: .venv/setup.log"; }
}
torch="$(sed -n 's/^torch==/torch==/p' constraints.txt)"
if [[ -z "${TORCH_INDEX_URL:-}" && ! -e /dev/nvidia0 ]] && ! .venv/bin/python -c 'import torch' 2>/dev/null; then
  say "no NVIDIA GPU here. Should pip choose a CUDA build of torch (some 3 GB), interrupt this and set TORCH_INDEX_URL to PyTorch's CPU index"
fi
say "installing $torch (the largest part: about 1 minute from a cache or a near mirror)"
pip ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "$torch"
say "installing tandem with [$extras] (about 1 minute)"
pip -e ".[$extras]"

# ---------------------------------------------------------------- the embedded MongoDB

mongod_says() { .venv/bin/python -c 'import subprocess, sys
from shared.processes.mongod import find_mongod
sys.exit(subprocess.run([find_mongod(), "--version"], stdout=subprocess.DEVNULL).returncode)' 2>&1; }
if ! said="$(mongod_says)"; then
  remedy="The embedded MongoDB needs libcurl and OpenSSL 3: apt-get install libcurl4 (Debian 12, Ubuntu 22.04 or newer)"
  if [[ "$(id -u)" == 0 ]] && command -v apt-get >/dev/null; then
    say "mongod does not start: ${said##*$'\n'}"
    say "installing the Debian package libcurl4"
    { apt-get update -qq && apt-get -o DPkg::Lock::Timeout=60 install -y -qq --no-install-recommends libcurl4; } >>.venv/setup.log 2>&1 || true
    said="$(mongod_says)" && said=""
  fi
  if [[ -n "$said" && -z "${DB_CONNECTION_STRING:-}" ]]; then
    die "mongod does not start: $said
$remedy
or bring a server of your own: DB_CONNECTION_STRING=mongodb://..."
  fi
fi

echo "$SECONDS" > .venv/setup.seconds
echo "$key $extras" > .venv/setup.stamp
say "done"
