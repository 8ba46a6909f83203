"""What a step of a run costs on this machine, and settings that fit it: `python -m tandem.plan RUN [options of tandem run]`.

    tandem plan my_run --model models/mine --train_file tasks.jsonl                 says it, starts nothing
    tandem plan my_run --model models/mine --train_file tasks.jsonl > my_run.yml    for `tandem run … --config my_run.yml`

With a number of GPUs it plans for machines that are not here, from a model's shape alone (`gpu_command.py`):

    tandem plan Qwen3-8B --gpus 16 --gpu h100 --context 32768 > my_run.yml

What is printed is a YAML of settings; its comments say what was found and what it costs. Options are those of `tandem run`, and
what they give stays as given. For some seconds it times products of matrices on the cores: what else runs makes them slower.
"""

import os

from shared.processes.interrupt import begin_program, run_command

if __name__ == "__main__":
    begin_program(is_command=True)
    from tandem.launch.threads import SLEEPING

    os.environ.update(SLEEPING)  # read when torch is loaded: as the services' threads wait, these do

import copy
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import yaml
from transformers import AutoTokenizer

from sampler.engine.local.memory import MAX_RUNNING, in_gb, weights_bytes
from sampler.settings import SamplerConfig
from shared.configuration.loading import read_sections
from shared.documents.step_cost import spoken
from shared.errors import ConfigError, DataError
from shared.files.json_file import read_json_file
from shared.processes.machine_memory import machine_memory_bytes
from tandem.launch.child_settings import sampler_settings
from tandem.launch.engine_size import engine_size
from tandem.launch.places import ROOT
from tandem.launch.policies import load_policies
from tandem.launch.settings import LaunchConfig
from tandem.launch.step_cost import tokens_of_episode
from tandem.launch.trainer_memory import MemoryParts, TrainedAs, predicted, trained_as
from tandem.plan.gpu_command import gpu_plan, is_gpu_plan
from tandem.plan.proposal import MEMORY_SHARE, PlannedStep, Proposal, propose
from tandem.plan.speed import Speed, measured

GROUPS, MAX_STEPS = 16, 40  # the trainer's own default, and what a first run needs
NEW_TOKENS, PROMPT_TOKENS = 64, 128  # where nothing says them
AT_ONCE = 64  # episodes: what the local engine runs at once
ASKED = 64  # tasks whose questions are counted
KINDS: dict[str, type] = {
    **{"groups_per_step": int, "max_tokens_per_row": int, "max_staleness": int, "max_steps": int, "lora_rank": int},
    **{"base_quantization": str, "learning_rate": float},
}


def main() -> int:
    if is_gpu_plan(sys.argv[1:]):
        try:
            gpu_plan(sys.argv[1:])
        except (ConfigError, DataError) as exc:
            sys.stderr.write(f"tandem plan: {exc}\n")
            return 2
        return 0
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.stdout.write(
            f"usage: tandem plan RUN_NAME [options of tandem run]\n\n{__doc__}\n`tandem run --help` explains them.\n"
        )
        return 0
    os.chdir(ROOT)
    try:
        config = load_policies()[0]
        sys.stdout.write("".join(f"{line}\n" for line in plan(config)))
    except (ConfigError, DataError) as exc:
        sys.stderr.write(f"tandem plan: {exc}\n")
        return 2
    return 0


def plan(config: LaunchConfig) -> Iterator[str]:
    """The lines of the YAML. Raises ConfigError, DataError."""
    cores, memory = len(os.sched_getaffinity(0)), machine_memory_bytes()
    gpus = f"{len(config.placed.names)} GPUs" if config.placed else "no GPU"
    yield f"# machine   {cores} cores, {in_gb(memory)} of memory, {gpus}"
    described = read_json_file(ROOT / config.model / "config.json", "a model's configuration", keys_once=False)
    yield f"# model     {config.model}: {weights_bytes(ROOT / config.model) / 4e6:,.1f} million parameters"
    if config.placed:
        yield "# The settings below are for cores alone. On the GPUs: `tandem run … --dry-run` shows who gets which."
    given = {
        name: value for name, kind in KINDS.items() if (value := config.trainer_settings.get(name, kind)) is not None
    }
    sampler, speed = sampler_settings([config]), _speed(described, cores)
    if speed is None:
        yield "# speed     not known: config.json does not say the model's shape as Llama's does"
    at_once = min(MAX_RUNNING, sampler.queue.max_concurrent_episodes * config.num_samplers)
    prompt = _prompt_tokens(config)
    as_given = PlannedStep(
        groups=int(str(given.get("groups_per_step", GROUPS))),
        generations=config.num_generations,
        tokens=tokens_of_episode(sampler),
        prompt=prompt,
        at_once=at_once,
    )
    if speed is not None:
        yield f"# speed     {_speed_text(speed, at_once)}"
        yield f"# as given  {_step_text(as_given, speed)}"
    yield f"# prompts   {prompt} tokens, the mean of the first questions; without a system prompt and tools"
    engine = engine_size([config], config)
    engine_bytes = engine.weights_bytes + (engine.plan.cache_bytes if engine.plan else 0) if engine else 0
    turns, each = _turns(config, sampler), _given_or(sampler, "max_new_tokens", NEW_TOKENS)
    small = replace(as_given, at_once=min(AT_ONCE, at_once), tokens=min(turns * each, sampler.budget.max_tokens))
    proposed = propose(
        small,
        trained_as(config.trainer_settings),
        given,
        lambda way, row: _parts(config, way, row),
        room=int(MEMORY_SHARE * memory) - engine_bytes,
    )
    if speed is not None:
        yield f"# proposed  {_step_text(proposed.step, speed)}"
    yield f"# memory    {_memory_text(proposed, engine_bytes, memory)}"
    yield from yaml.safe_dump(_settings(config, sampler, given, proposed), sort_keys=False).splitlines()


def _speed(described: Any, cores: int) -> Speed | None:
    try:
        return measured(described, cores)
    except (KeyError, TypeError):
        return None


def _speed_text(speed: Speed, at_once: int) -> str:
    sampled, learned = at_once / speed.decode_s(at_once), 1 / (speed.token + speed.head)
    what = f"{sampled:,.0f} tokens/s sampled by {at_once} episodes at once, {learned:,.0f} tokens/s trained"
    return f"{what}: predicted, each alone"


def _step_text(step: PlannedStep, speed: Speed) -> str:
    sampling, learning = step.sampling_s(speed), step.learning_s(speed)
    return (
        f"{step.groups} groups x {step.generations} = {step.episodes:,} episodes of at most {step.tokens:,} sampled tokens: "
        f"sampling {spoken(sampling)} and learning {spoken(learning)}, a step {spoken(sampling + learning)} at worst"
    )


def _memory_text(proposed: Proposal, engine_bytes: int, memory: int) -> str:
    way = proposed.trained
    what = "all parameters" if not way.lora_rank else f"adapters of rank {way.lora_rank}"
    if way.base_quantization != "none":
        what += f" of a base in {way.base_quantization}"
    verdict = "" if proposed.fits else ", WHICH DOES NOT FIT: take a smaller model"
    return f"trainer {in_gb(proposed.parts.total)} ({what}), engine {in_gb(engine_bytes)} of {in_gb(memory)}{verdict}"


def _prompt_tokens(config: LaunchConfig) -> int:
    """The mean of the first questions; a guess where tasks come from elsewhere."""
    if config.mix() is not None:
        return PROMPT_TOKENS
    lines = (ROOT / config.train_file).read_text(encoding="utf-8").splitlines()[:ASKED]
    try:
        questions = [str(json.loads(line)["query"]) for line in lines if line.strip()]
    except (ValueError, KeyError, TypeError):
        return PROMPT_TOKENS  # tandem run says what is wrong with it
    if not questions:
        return PROMPT_TOKENS
    tokenizer = AutoTokenizer.from_pretrained(ROOT / config.model)
    return round(sum(len(ids) for ids in tokenizer(questions)["input_ids"]) / len(questions))


def _turns(config: LaunchConfig, sampler: SamplerConfig) -> int:
    """One, where nothing is there that would answer the model."""
    answered = config.tools or config.environment_flags() or sampler.budget.max_turns == 1
    return sampler.budget.max_turns if answered else _given_or(sampler, "max_turns", 1)


def _given_or(sampler: SamplerConfig, name: str, otherwise: int) -> int:
    return getattr(sampler.budget, name) if name in sampler.budget.model_fields_set else otherwise


def _parts(config: LaunchConfig, way: TrainedAs, row: int) -> MemoryParts:
    try:
        return predicted(ROOT / config.model, way, row)
    except KeyError:  # a model whose activations are not known
        return predicted(ROOT / config.model, way)


def _settings(
    config: LaunchConfig, sampler: SamplerConfig, given: Mapping[str, object], proposed: Proposal
) -> dict[str, dict[str, Any]]:
    """The sections of the YAML and the services' flags, as they are given, and what they lack as it is proposed."""
    way = proposed.trained
    trainer: dict[str, object] = {
        "loss": "GRPO",
        "groups_per_step": proposed.step.groups,
        "max_steps": given.get("max_steps", MAX_STEPS),
        "max_staleness": given.get("max_staleness", 0),
        "learning_rate": given.get("learning_rate", proposed.rate),
        "lr_schedule": "constant",
        "warmup_steps": 0,
        "max_tokens_per_row": proposed.row,
    }
    if way.lora_rank:
        trainer["lora_rank"] = way.lora_rank
    if way.base_quantization != "none":
        trainer["base_quantization"] = way.base_quantization
    turns = _turns(config, sampler)
    lacking: dict[str, dict[str, object]] = {
        "launch": {"num_samplers": config.num_samplers, "num_generations": config.num_generations},
        "trainer": trainer,
        "sampler": {
            "advantage": "zscore",
            "max_turns": turns,
            "max_new_tokens": _given_or(sampler, "max_new_tokens", NEW_TOKENS),
            "max_concurrent_episodes": min(AT_ONCE, sampler.queue.max_concurrent_episodes),
        },
    }
    sections: dict[str, dict[str, Any]] = copy.deepcopy(read_sections(ROOT / config.config)) if config.config else {}
    for name, flags in config.service_flags.items():
        for flag in flags:
            setting, value = flag.removeprefix("--").split("=", 1)
            _set(sections.setdefault(name, {}), setting.rpartition(".")[2], yaml.safe_load(value))
    for name, values in lacking.items():
        section = sections[name] = sections.get(name) or {}
        section |= {setting: value for setting, value in values.items() if _place_of(section, setting) is None}
    return sections


def _set(section: dict[str, Any], name: str, value: object) -> None:
    place = _place_of(section, name)
    (section if place is None else place)[name] = value


def _place_of(section: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The mapping that has the setting: the section, or one of its parts; a part of the same name is no setting."""
    if name in section and not isinstance(section[name], dict):
        return section
    parts = (part for part in section.values() if isinstance(part, dict))
    return next((found for part in parts if (found := _place_of(part, name)) is not None), None)


if __name__ == "__main__":
    run_command(main)
