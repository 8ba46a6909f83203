#!/usr/bin/env bash
# The unmodified SGLang 0.5.23 on a machine without a GPU, in a virtual environment of its own.
#
#   scripts/sglang_cpu.sh install                              make .sglang/ (about 2 minutes, 2.8 GB), or return at once
#   scripts/sglang_cpu.sh serve MODEL_DIR [--port P] [...]     serve a checkpoint in the foreground; port 30000 if not given
#   scripts/sglang_cpu.sh installed                            exit status 0 when `serve` would work, else 1
#
# It serves small float32 checkpoints exactly: log-probs equal transformers' to 1e-5. For tests, and for trying a run against
# the real engine; 650 tokens/s alone and over 5,000 with 16 requests at once for a model of one million parameters on two
# cores. It takes 15 to 30 s to start and 1.6 GB of memory. What follows MODEL_DIR goes to SGLang as it is, so that for
# instance `--max-total-tokens 65536 --weight-version 0` overrides what is set below. SIGTERM or Ctrl-C ends it.
#
# With an NVIDIA GPU install SGLang as its own manual says (pip install sglang), start it, and name it: ENGINE_URLS=http://...
#
#   SGLANG_ROOT       where everything lies; default: .sglang at the repository root. Nothing else is written but pip's cache
#   PYTHON            which CPython (3.11 or newer) makes its environment; default: the first that fits
#   TORCH_INDEX_URL   where torch comes from, e.g. the CPU index that pytorch.org names
#   OMP_NUM_THREADS   default 1: SGLang's own choice oversubscribes, 2 to 4 times slower, and far worse under load
#
# Exit status 3: this machine cannot have it (the message says why).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
name=sglang
root="${SGLANG_ROOT:-$(dirname "$here")/.sglang}"
constraints="$here/sglang_constraints.txt"
source "$here/engine_venv.sh"

refuse_other_machines() {
  [[ "$(uname -s)" == Linux ]] || die "this is $(uname -s); SGLang runs on Linux" 3
  if compgen -G "/dev/nvidia[0-9]*" >/dev/null; then
    die "this machine has an NVIDIA GPU: install SGLang as its manual says (pip install sglang), start it with
  python -m sglang.launch_server --model-path MODEL_DIR --weight-version 0 --port 30000
and name it: ENGINE_URLS=http://127.0.0.1:30000. This script is for machines without one." 3
  fi
}

# SGLang pins a newer torch, but works with the one that the project uses, and that one has CPU builds.
install_packages() {
  install_named_packages
  mend_torchvision
  write_kernel_substitute
  say "checking that the server imports (it compiles its modules once)"
  check_import sglang.srt.entrypoints.http_server
}

install_named_packages() {
  local -a alone named
  mapfile -t alone < <(pinned 'sglang|triton|torchvision|compressed-tensors|xgrammar')
  say "installing ${alone[*]} (without their dependencies, which would bring CUDA: some 5 GB)"
  pip_install --no-deps "${alone[@]}"
  # What those import on the way to a CPU server. The other 60 dependencies of SGLang are never imported.
  mapfile -t named < <(pinned 'aiohttp|apache-tvm-ffi|dill|distro|einops|fastapi|gguf|huggingface_hub|ipython|jsonschema|loguru|msgspec|numpy|openai|openai-harmony|orjson|packaging|partial-json-parser|pillow|prometheus_client|psutil|pybase64|pydantic|python-multipart|pyzmq|regex|requests|safetensors|sentencepiece|setproctitle|soundfile|tokenizers|tqdm|transformers|uvicorn|uvloop|zstandard')
  say "installing the ${#named[@]} packages that they import"
  pip_install -c "$constraints" "${named[@]}"
}

write_kernel_substitute() {
  # sgl_kernel exists as CUDA wheels only. These are the names that SGLang imports unconditionally with
  # SGLANG_USE_CPU_ENGINE=1; all else that it looks for stays an ImportError, so that its own torch fallbacks run. One of
  # them is called when a text model is served; the others belong to speculative decoding and say so if they ever are.
  local site; site="$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
  mkdir -p "$site/sgl_kernel"
  cat > "$site/sgl_kernel/__init__.py" <<'PYTHON'
"""Written by Tandem's scripts/sglang_cpu.sh: what SGLang imports from sgl_kernel on a CPU."""

import torch

__version__ = "0.4.10"


def assign_req_to_token_pool_cpu(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len):
    taken = 0
    for request, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist()):
        req_to_token[request, start:end] = out_cache_loc[taken : taken + end - start].to(req_to_token.dtype)
        taken += end - start


def _absent(name):
    def function(*args, **kwargs):
        raise NotImplementedError(f"sgl_kernel.{name}: not available on a CPU without the compiled kernels")

    function.__name__ = name
    return function


for _name in (
    "copy_all_layer_kv_cache_cpu",
    "rotate_input_ids_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "build_tree_kernel_efficient_cpu",
    "verify_tree_greedy_cpu",
):
    globals()[_name] = _absent(_name)

# Operators that modules of vision models look up when they are imported, for models of other families. Without an
# implementation a call raises NotImplementedError.
_library = torch.library.Library("sgl_kernel", "FRAGMENT")
for _name in (
    "fused_sigmoid_mul_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
):
    _library.define(f"{_name}(Tensor x) -> Tensor")
PYTHON
}

set_environment() {
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" SGLANG_USE_CPU_ENGINE=1 HF_HUB_OFFLINE=1
  export HF_HOME="$root/hf" XDG_CACHE_HOME="$root/cache" TRITON_CACHE_DIR="$root/cache/triton" TMPDIR="$root/tmp"
  export SGLANG_VLM_CACHE_SIZE_MB="${SGLANG_VLM_CACHE_SIZE_MB:-0}"  # features of images, which no update of weights clears
  export PATH="$venv/bin:$PATH"
}

serve() {
  local model="$1"
  shift
  # The cap on the cache: without it SGLang takes all memory (15 GB, and 50 s more to start). 64 requests fill it at 512
  # tokens each; SGLang would admit 4096. float32: `auto` would serve a float32 checkpoint in float16. Of two options of one
  # name the last counts, so those of the caller win. --sleep-on-idle: without it the scheduler polls, and takes a whole core
  # from the trainer also when there is nothing to do.
  exec "$venv/bin/python" -m sglang.launch_server --model-path "$model" --dtype float32 --max-total-tokens 32768 \
    --max-running-requests 64 --sleep-on-idle --host 127.0.0.1 --port 30000 "$@"
}

run_command "$@"
