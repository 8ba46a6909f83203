"""Gives the policies of a launch their GPUs: finds those of this machine, places, and checks that SGLang can be started."""

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from shared.errors import ConfigError
from shared.files.json_file import read_json_file
from tandem.launch.gpus import visible_gpus
from tandem.launch.placement import Placed, Wanted, lines, place
from tandem.launch.places import EXAMPLE, ROOT
from tandem.launch.settings import LaunchConfig

SGLANG, VLLM = "sglang", "vllm"
EXAMPLE_MODEL = EXAMPLE / "model"


def place_gpus(policies: Sequence[LaunchConfig]) -> None:
    """Raises ConfigError, which names the setting. Without GPUs nothing changes."""
    owner = policies[0]
    if owner.assume_gpus is not None and not owner.dry_run:
        raise ConfigError("assume_gpus is for plans: expected --dry-run with it")
    gpus = visible_gpus(owner)
    placed = place(len(gpus), [_wanted(config) for config in policies], owner.gpus)
    for config in policies:
        placement = placed.get(config.policy)
        if placement is None:
            continue
        if config.num_processes not in (0, len(placement.trainer)) and placement.trainer:
            raise ConfigError(
                f"num_processes is {config.num_processes}, but the trainer of policy {config.policy} has "
                f"{len(placement.trainer)} GPUs; expected one process for each, or 0"
            )
        config.give(Placed(placement, tuple(gpu.name for gpu in gpus), owner.mem_fraction_static))
        if placement.engines and len(config.engine) > 1:
            raise ConfigError(
                f"ENGINE is {','.join(config.engine)}, and the engines of policy {config.policy} get GPUs; expected one kind: "
                "keepers add engines of another one to the run (docs/run/engines.md)"
            )
        if placement.engines and owner.assume_gpus is None and config.engine == ["vllm"]:
            vllm_python()
        elif placement.engines and owner.assume_gpus is None and shutil.which(SGLANG) is None:
            raise ConfigError(
                f"this machine has GPUs ({len(gpus)}), and SGLang, which would use them, is not installed: there is no program "
                f"{SGLANG!r} on PATH. Install it (pip install sglang), name running servers (ENGINE_URLS), or set ENGINE=local"
            )


def vllm_python() -> str:
    """The Python of vLLM's own environment, by its program on PATH. Raises ConfigError."""
    program = shutil.which(VLLM)
    python = None if program is None else Path(program).resolve().parent / "python"
    if python is None or not python.is_file():
        raise ConfigError(
            f"engine is vllm, and vLLM is not installed: no folder on PATH has the program {VLLM!r} and its python. Install "
            "it in an environment of its own (pip install vllm), or name running servers (ENGINE_URLS)"
        )
    return shlex.quote(str(python))


def gpu_lines(policies: Sequence[LaunchConfig]) -> list[str]:
    """The placement for people; nothing without GPUs."""
    return lines({config.policy: config.placed.placement for config in policies if config.placed})


def _wanted(config: LaunchConfig) -> Wanted:
    """ENGINE=local, if it is said, keeps the engine on the CPU; so does the bundled model where SGLang is not installed."""
    settled = config.says_engine or config.gpus or config.assume_gpus is not None
    by_default = bool(settled) or config.model != EXAMPLE_MODEL or shutil.which(SGLANG) is not None
    local = config.engine in (["local"], ["auto"]) and (config.says_engine or not by_default)
    described = read_json_file(ROOT / config.model / "config.json", "a model's configuration", keys_once=False)
    heads = described.get("num_attention_heads") if isinstance(described, dict) else None
    return Wanted(
        config.policy, config.trains, config.starts_engine and not local, heads if isinstance(heads, int) else None
    )
