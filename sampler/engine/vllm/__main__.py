"""Command line of vLLM behind the engine contract: `python -m sampler.engine.vllm --model-path DIR --port P`."""

from __future__ import annotations

from shared.processes.interrupt import INTERRUPTED, begin_program, run_command

if __name__ == "__main__":
    begin_program()

import argparse
import asyncio
import importlib.util
import logging
import signal
import sys
from pathlib import Path
from types import FrameType

from shared.errors import ConfigError, DataError
from shared.http.listening import listening_socket
from shared.processes.signals import not_ignored

EPILOG = """\
All other options go to vLLM as they are: --dtype bfloat16, --tensor-parallel-size 4, --gpu-memory-utilization 0.8, --enable-lora,
--quantization fp8, … (`vllm serve --help` lists them). --quantization int8 is ours: the linear layers of each version are
rounded to 8 bits as it is loaded.

example, with vLLM's own virtual environment (scripts/vllm_cpu.sh makes one for machines without a GPU):
  .vllm/venv/bin/python shared/processes/run_module.py sampler.engine.vllm --model-path my-model --port 30000 --weight-version 0
"""


def main() -> int:
    args, others = _parser().parse_known_args()
    if not (args.model_path / "config.json").is_file():
        print(
            f"error: --model-path {args.model_path}: no config.json there; expected a transformers folder",
            file=sys.stderr,
        )
        return 2
    if importlib.util.find_spec("vllm") is None:
        print(
            f"error: {sys.executable} has no vLLM; start this with the Python of vLLM's own environment",
            file=sys.stderr,
        )
        return 2
    logging.basicConfig(level=args.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        return asyncio.run(_serve(args, others))
    except (ConfigError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


async def _serve(args: argparse.Namespace, others: list[str]) -> int:
    # importing torch and vLLM takes seconds: not for --help, nor for a mistyped path
    from sampler.engine.api.server import build_app
    from sampler.engine.api.serving import serve_until_signal
    from sampler.engine.vllm.start import start_vllm

    for number in not_ignored(signal.SIGTERM):
        signal.signal(number, _end_in_order)
    engine = await start_vllm(args, others)
    listener = listening_socket(args.host, args.port, "--host and --port")
    interrupted = await serve_until_signal(build_app(engine, args.api_key), listener, args.log_level)
    if engine.failure:
        return 1
    return INTERRUPTED if interrupted else 0


def _end_in_order(number: int, frame: FrameType | None) -> None:
    """While vLLM starts: Python's own end ends its core and workers, which a signal's default would leave behind."""
    sys.exit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sampler.engine.vllm",
        description="vLLM, unmodified, with the HTTP API that keepers and samplers use (SGLang's).",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--model-path", type=Path, required=True, help="folder with config.json, *.safetensors and tokenizer.json")
    add("--port", type=int, required=True)
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--api-key", help="key that all requests except /health must send: Authorization: Bearer KEY (default: none)")
    add("--weight-version", default="default", help="label of the weights it starts with (default: %(default)s)")
    add("--context-length", type=int, help="vLLM's --max-model-len (default: the model's own)")
    add("--max-running-requests", type=int, default=64, help="vLLM's --max-num-seqs (default: %(default)s)")
    add(
        "--enable-metrics",
        action="store_true",
        help="vLLM's own figures too at /metrics (vllm:num_requests_running, …)",
    )
    add("--log-level", default="info", choices=["debug", "info", "warning", "error"], help="(default: %(default)s)")
    return parser


if __name__ == "__main__":
    run_command(main)
