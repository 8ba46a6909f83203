"""The policies of a launch: one, or those that the YAML's `policies` names, each with its own settings.

    launch: {policy: solver}                               owner of the tasks; default and environment as for any run
    policies:
      solver: {}
      judge: {launch: {model: /models/judge, engine_urls: [http://gpu2:30000]}, trainer: {learning_rate: 1.0e-6}}

Each policy gets its own engines and trainer. Tasks, database, samplers and tools belong to the run and are shared.
"""

import sys
from collections import Counter
from collections.abc import Sequence

from shared.errors import ConfigError
from tandem.launch.child_settings import keeper_settings
from tandem.launch.placing import place_gpus
from tandem.launch.settings import LaunchConfig

OWN_KEYS = ("frozen", "model", "engine_urls", "engine", "num_processes", "accelerate_config")  # of `launch`


def load_policies(argv: Sequence[str] | None = None) -> list[LaunchConfig]:
    """One configuration per policy, the tasks' owner first. Raises ConfigError."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    owner = LaunchConfig.load(arguments)
    own = owner.own_sections()
    for policy, sections in own.items():
        strange = sorted((sections.get("launch") or {}).keys() - set(OWN_KEYS))
        if strange:
            raise ConfigError(
                f"{owner.config}: policies.{policy}.launch: {strange[0]!r} is a setting of the run; "
                f"a policy may set {', '.join(OWN_KEYS)}"
            )
    others = [name for name in own if name != owner.policy]
    policies = [owner, *(LaunchConfig.load([*arguments, "--policy", name]) for name in others)]
    if owner.frozen and not owner.only_evaluate:
        raise ConfigError(f"policy {owner.policy!r}, the owner of the tasks, is frozen: nothing would be trained")
    _check_engines(policies)
    _check_adapters(policies)
    place_gpus(policies)
    return policies


def _check_engines(policies: Sequence[LaunchConfig]) -> None:
    """Check that no engine is given to two policies, unless both are adapters in it: it serves the weights of one."""
    used = Counter(url for config in policies for url in config.engine_urls)
    shared = [url for url, count in used.items() if count > 1]
    if shared and all(keeper_settings(config).adapters == "engine" for config in policies if config.engine_urls):
        return
    if shared:
        raise ConfigError(
            f"engine {shared[0]} is given to {used[shared[0]]} policies; expected separate engine_urls for each of "
            f"{', '.join(config.policy for config in policies)} (YAML: policies.NAME.launch.engine_urls), or adapters: engine "
            "for all, which one engine serves together"
        )


def _check_adapters(policies: Sequence[LaunchConfig]) -> None:
    """Check that no engine is to load a DoRA: vLLM and SGLang refuse it, version by version, while the trainer goes on."""
    for config in policies:
        if config.trainer_settings.get("use_dora", bool) and keeper_settings(config).adapters == "engine":
            raise ConfigError(
                f"policy {config.policy}: use_dora is true and adapters is engine; expected adapters: merged, since neither vLLM "
                "nor SGLang loads a DoRA, or use_dora false"
            )
