"""The size of the local engine that a keeper starts: its settings, and the flags of its command line."""

from pydantic import Field

from shared.configuration.sections import Section

SIZES = ("kv_cache_bytes", "context_length", "max_running_requests")


class LocalEngineConfig(Section):
    """The local CPU engine; another engine's settings stand in engine_command."""

    kv_cache_bytes: int | None = Field(
        None,
        gt=0,
        description="Memory of the local engine's KV cache; lowers max_running_requests to what fits with a whole context each. "
        "None: a quarter of the machine's memory.",
    )
    context_length: int | None = Field(
        None,
        gt=2,
        description="Context of the local engine, in tokens. None: the model's own, or as much of it as kv_cache_bytes holds. "
        "The launcher derives it from the sampler's max_tokens.",
    )
    max_running_requests: int | None = Field(
        None,
        gt=0,
        description="Most requests that the local engine runs at once. None: 64. The launcher derives it from the samplers' "
        "max_concurrent_episodes.",
    )

    def local_flags(self) -> list[str]:
        values = {name: getattr(self, name) for name in SIZES}
        return [
            word
            for name, value in values.items()
            if value is not None
            for word in (f"--{name.replace('_', '-')}", str(value))
        ]
