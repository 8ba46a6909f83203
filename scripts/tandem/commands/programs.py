"""`tandem sampler`, `tandem trainer`, ...: every service's program as a command, with that program's own options.

The command becomes the program (`exec`), so that signals and the exit status are the program's. `tandem trainer` is
`accelerate launch` with the trainer: options of the launch are passed on to it.
"""

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import NoReturn

import typer

from shared.processes.run_module import command
from tandem.commands.connect import USAGE, complain

PROGRAMS = {  # {command: (module, the extra that it needs, a package of that extra, what it does)}
    "run": (
        "tandem.launch",
        "sampler,trainer,engine,local",
        "accelerate",
        "Run everything on this machine, to the end.",
    ),
    "demo": (
        "tandem.launch",
        "sampler,trainer,engine,local",
        "accelerate",
        "Train the bundled model on the bundled tasks on this machine: `tandem run demo --method minirl`.",
    ),
    "plan": (
        "tandem.plan",
        "sampler,trainer,engine,local",
        "torch",
        "Say what a step of a run costs on this machine, and settings that fit it: `tandem run`'s options.",
    ),
    "sampler": ("sampler", "sampler", "httpx", "Play a run's episodes."),
    "gateway": ("sampler.gateway", "sampler,gateway", "starlette", "Serve agents that run elsewhere."),
    "keeper": ("sampler.engine.keeper", "sampler", "httpx", "Run and update one inference engine of a run."),
    "engine": ("sampler.engine.local", "engine", "torch", "Serve a model with the local inference engine."),
    "vllm": ("sampler.engine.vllm", "engine", "starlette", "Serve a model with vLLM, by the Python that has it."),
    "environments": ("sampler.environments", "sampler,gateway", "starlette", "Serve environments to samplers."),
    "mcp-docker": ("sampler.mcp_docker", "sampler,gateway", "starlette", "Serve many episodes' tool servers."),
    "trainer": ("trainer", "trainer", "accelerate", "Train a policy, with the options of `accelerate launch` too."),
    "sft": ("trainer.sft", "trainer", "accelerate", "Train on conversations or on a run's good records."),
    "quantize": ("trainer.quantize", "trainer,quantized", "bitsandbytes", "Write a model of 4-bit numbers, for QLoRA."),
    "verify": ("tandem.what_if.verify", "trainer", "torch", "Recompute a run's stored log-probs."),
}
LAUNCHED = ("trainer", "sft")
BEGINNINGS = {"demo": ("demo", "--method", "minirl")}  # of a command's arguments
LAUNCH_OPTIONS = {  # of `accelerate launch`; they take a value
    *("--config_file", "--num_processes", "--num_machines", "--machine_rank"),
    *("--main_process_ip", "--main_process_port", "--mixed_precision", "--dynamo_backend"),
}
FSDP2 = "fsdp2.yml"  # a file of the package `trainer`, and `assets/fsdp2.yml` of the sources
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def add_to(app: typer.Typer, name: str) -> None:
    module, *_, help_text = PROGRAMS[name]
    text = f"{help_text} The same as `python -m {module}`; `tandem {name} --help` explains its options."
    app.command(name, help=text, context_settings=PASSED_ON, rich_help_panel="Services")(_command(name))


def _command(name: str) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        become(name, context.args)

    return run


def become(name: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by the program. Exits with a message where its packages are missing."""
    module, extra, package, _ = PROGRAMS[name]
    if find_spec(package) is None:
        complain(f"tandem {name} needs the packages of its extra: pip install 'tandem-rl[{extra}]'")
        raise typer.Exit(USAGE)
    given = [*BEGINNINGS.get(name, ()), *arguments]
    words = launched(module, given) if name in LAUNCHED else command(module, *given)
    os.execv(words[0], words)


def launched(module: str, arguments: Sequence[str]) -> list[str]:
    """`accelerate launch` of `module`. For `--help` the module alone: torch's launcher would add 30 lines around it."""
    if "--help" in arguments or "-h" in arguments:
        return command(module, *arguments)
    launch, own = split(arguments)
    if not any(word.partition("=")[0] == "--config_file" for word in launch):
        launch = ["--config_file", str(_settings()), *launch]
    if not any(word.partition("=")[0] == "--num_processes" for word in launch):
        launch += ["--num_processes", "1"]
    script = command(module)[1:]
    return command("trainer.launch", *launch, *script, *own)


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """(options of `accelerate launch`, options of the program)."""
    launch: list[str] = []
    own: list[str] = []
    words = iter(arguments)
    for word in words:
        if word in LAUNCH_OPTIONS:
            launch += [word, *islice(words, 1)]
        else:
            (launch if word.partition("=")[0] in LAUNCH_OPTIONS else own).append(word)
    return launch, own


def _settings() -> Path:
    spec = find_spec("trainer")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations))) / FSDP2
