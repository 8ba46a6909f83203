"""Command line of the local engine: `python -m sampler.engine.local --model-path DIR --port P`."""

from __future__ import annotations

from shared.processes.interrupt import INTERRUPTED, begin_program, run_command

if __name__ == "__main__":
    begin_program()

import argparse
import asyncio
import logging
import sys
from dataclasses import fields
from pathlib import Path

from sampler.engine.local.memory import CACHE_SHARE, MAX_RUNNING
from shared.errors import ConfigError
from shared.http.listening import listening_socket

EPILOG = """\
example:
  python -m sampler.engine.local --model-path my-model --port 30000 &
  curl localhost:30000/health
  curl localhost:30000/generate -H 'Content-Type: application/json' -d '{"text": "hello",
       "sampling_params": {"max_new_tokens": 16, "temperature": 1.0}, "return_logprob": true}'

new weights, without losing what is being generated:
  POST /pause_generation {"mode": "retract"}
  POST /update_weights_from_disk {"model_path": "my-model-v2", "weight_version": "2"}
  POST /continue_generation {}
An incomplete folder, or another architecture, is refused with a 400 and the reason; the old weights stay.
"""


def main() -> int:
    args = _parser().parse_args()
    if not (args.model_path / "config.json").is_file():
        print(
            f"error: --model-path {args.model_path}: no config.json there; expected a transformers folder",
            file=sys.stderr,
        )
        return 2
    return serve(args)


def serve(args: argparse.Namespace) -> int:
    # importing torch and transformers takes seconds: not for --help, nor for a mistyped path
    from transformers.utils.logging import disable_progress_bar

    from sampler.engine.api.server import build_app
    from sampler.engine.api.serving import serve_until_signal
    from sampler.engine.local.engine import create
    from sampler.engine.local.runner import EngineSize, UnsupportedModelError

    disable_progress_bar()
    logging.basicConfig(level=args.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        size = EngineSize(**{field.name: getattr(args, field.name) for field in fields(EngineSize)})
        engine = create(args.model_path, size, args.weight_version)
    except (UnsupportedModelError, ConfigError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2

    try:
        listener = listening_socket(args.host, args.port, "--host and --port")
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    interrupted = asyncio.run(serve_until_signal(build_app(engine, args.api_key), listener, args.log_level))
    if engine.failure:
        return 1
    return INTERRUPTED if interrupted else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sampler.engine.local",
        description="A small inference server with SGLang's HTTP API, on transformers and a CPU: for laptops and "
        "tests. Float32, continuous batching, prefix reuse, exact log-probs. SGLang is for everything else.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model-path", type=Path, required=True, help="folder with config.json, *.safetensors and tokenizer.json")
    add("--port", type=int, required=True)
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add(
        "--api-key",
        help="key that all requests except /health must send: Authorization: Bearer KEY (default: none)",
    )
    add(
        "--max-running-requests", type=_positive, default=MAX_RUNNING, help="sequences at a time (default: %(default)s)"
    )
    add("--kv-cache-bytes", type=_positive, help="memory of the KV cache; lowers --max-running-requests to what fits with the "
        f"whole context each (default: 1/{CACHE_SHARE} of the machine's memory)")  # fmt: skip
    add("--max-total-tokens", type=_positive, help="the same in tokens (default: as many as --kv-cache-bytes holds)")
    add(
        "--context-length", type=_positive, help="limit the context below the model's own (default: that, or what fits)"
    )
    add("--num-threads", type=_positive, help="torch threads (default: 1 for small models, else torch's choice)")
    add("--weight-version", default="default", help="label of the weights it starts with (default: %(default)s)")
    add("--log-level", default="info", choices=["debug", "info", "warning", "error"], help="(default: %(default)s)")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a positive number")
    return number


if __name__ == "__main__":
    run_command(main)
