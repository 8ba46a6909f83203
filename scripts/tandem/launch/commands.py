"""The command line and environment of every child. A service's `--help` explains its options.

Keepers and trainers get the configuration of their policy, samplers those of all policies.
"""

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from sampler.engine.keeper.config import LOOPBACK
from shared.configuration.secrets import DATABASE
from shared.processes import run_module
from tandem.launch.gpus import VISIBLE
from tandem.launch.nodes import interface_of
from tandem.launch.placement import EnginePlace
from tandem.launch.places import EXAMPLE, ROOT, module_command
from tandem.launch.placing import SGLANG, vllm_python
from tandem.launch.settings import LaunchConfig

Command = list[str]
CPU_ENGINES = {kind: ROOT / "scripts" / f"{kind}_cpu.sh" for kind in ("sglang", "vllm")}  # of a checkout


def environment() -> dict[str, str]:
    """For every child: five processes share a few cores, so each library gets one thread by default."""
    threads = {name: os.environ.get(name, "1") for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    return threads | {"TOKENIZERS_PARALLELISM": os.environ.get("TOKENIZERS_PARALLELISM", "false")}


def with_database(section: str, database: str) -> dict[str, str]:
    """The environment of the service with this section. It contains the connection string because every user of the machine
    may read a process's arguments, but not its environment."""
    return environment() | {f"TANDEM_{section.upper()}_{DATABASE.upper()}": database}


def tools() -> Command:
    server = str(EXAMPLE / "tool_server.py")
    return [sys.executable, server, "--transport", "streamable-http", "--port", "0"]  # prints its port


def environments(config: LaunchConfig) -> Command:
    """Where the launch starts a service of environments. It prints its address."""
    return [*module_command("sampler.environments"), "--run", config.run, *config.environment_flags()]


def keeper(
    config: LaunchConfig,
    engine_url: str | None,
    place: EnginePlace | None = None,
    size: Sequence[str] = (),
    kind: str | None = None,
) -> Command:
    """`engine_url`: a running engine. Without one the keeper starts an engine: on the GPUs of `place`, if any; else the one
    of `kind`, by default the first of `config.kinds`. `size`: flags of the local one."""
    engine = ["--engine_url", engine_url] if engine_url else []
    kind = kind or config.kinds[0]
    if place is not None:
        engine = _on_gpus_of(config, place)
    elif kind in CPU_ENGINES:
        script = shlex.quote(str(CPU_ENGINES[kind]))
        command = f"{script} serve {{model}} --host {{host}} --port {{port}} --weight-version 0"
        engine = ["--engine_command", _with_flags(config, command)]
    if engine_url is None and (address := config.address) != LOOPBACK:
        engine += ["--engine_host", address]
    return [
        *module_command("sampler.engine.keeper"),
        *_common(config),
        *engine,
        *(size if kind == "local" else ()),
        *_given(config, "keeper"),
    ]


def _on_gpus_of(config: LaunchConfig, place: EnginePlace) -> Command:
    module_file = shlex.quote(str(Path(run_module.__file__)))
    program, ranks, memory = f"{SGLANG} serve", "--tp-size", "--mem-fraction-static"
    is_vllm = config.engine == ["vllm"]
    if is_vllm:
        program, ranks, memory = (
            f"{vllm_python()} {module_file} sampler.engine.vllm",
            "--tensor-parallel-size",
            "--gpu-memory-utilization",
        )
    command = (
        f"{program} --model-path {{model}} --host {{host}} --port {{port}} {ranks} {len(place.gpus)} --weight-version 0"
    )
    if place.shared_device and not is_vllm:
        command += " --enable-memory-saver"
    if config.placed and (fraction := config.placed.mem_fraction(place)):
        command += f" {memory} {fraction:g}"
    shared = ["--shared_device", place.shared_device] if place.shared_device else []
    return [
        "--engine_command",
        _with_flags(config, command),
        "--start_timeout_s",
        f"{config.start_timeout_s:g}",
        *shared,
    ]


def _with_flags(config: LaunchConfig, command: str) -> str:
    return f"{command} {config.engine_flags}" if config.engine_flags else command


def on_gpus(config: LaunchConfig, gpus: Sequence[int]) -> dict[str, str]:
    """The variable that shows a process these GPUs alone; nothing where none were placed."""
    return {VISIBLE: config.placed.visible(gpus)} if config.placed else {}


def install_engine(kind: str) -> Command:
    return [str(CPU_ENGINES[kind]), "install"]


def sampler(policies: Sequence[LaunchConfig], mcp_url: str | None) -> Command:
    owner, *others = policies
    models = {config.policy: str(config.model) for config in others}
    taking_turns = ["--other_policies", json.dumps(models)] if models else []
    frozen = [config.policy for config in others if config.frozen]
    if frozen:
        taking_turns += ["--frozen_policies", json.dumps(frozen)]
    tools = ["--mcp_manager_url", mcp_url] if mcp_url else []
    return [
        *module_command("sampler"),
        *_common(owner),
        *tools,
        *taking_turns,
        *_given(owner, "sampler"),
    ]


def trainer(config: LaunchConfig) -> Command:
    launch = ["--config_file", str(config.accelerate_config), "--num_processes", str(num_trainers(config))]
    if config.machines.num_machines > 1:
        launch += [
            "--num_machines",
            str(config.machines.num_machines),
            "--machine_rank",
            str(config.machines.machine_rank),
        ]
        launch += [
            "--main_process_ip",
            str(config.machines.master_addr),
            "--main_process_port",
            str(config.trainer_port),
        ]
    output = ["--output_dir", str(config.policy_folder)]
    if config.placed and (device := config.placed.placement.shared_device):
        output += ["--shared_device", device]
    return [
        *module_command("trainer.launch"),
        *launch,
        *module_command("trainer")[1:],
        *_common(config),
        *output,
        *_given(config, "trainer"),
    ]


def trainer_environment(config: LaunchConfig, database: str) -> dict[str, str]:
    """The trainer refuses to start with fewer processes than this."""
    return with_database("trainer", database) | {"TANDEM_NUM_PROCESSES": str(num_trainers(config))} | _interface(config)


def _interface(config: LaunchConfig) -> dict[str, str]:
    """Gloo would take the address of the host's name, which on Debian is 127.0.1.1."""
    if config.machines.num_machines == 1 or "GLOO_SOCKET_IFNAME" in os.environ:
        return {}
    name = interface_of(config.address)
    return {"GLOO_SOCKET_IFNAME": name} if name else {}


def num_trainers(config: LaunchConfig) -> int:
    return config.processes_here * config.machines.num_machines


def _common(config: LaunchConfig) -> Command:
    flags = ["--run", config.run, "--policy", config.policy]
    flags += ["--model_name_or_path", str(config.model)]
    return flags + (["--config", str(config.config)] if config.config else [])


def _given(config: LaunchConfig, section: str) -> Command:
    """The service's flags from the launcher's command line."""
    return config.service_flags.get(section, [])
