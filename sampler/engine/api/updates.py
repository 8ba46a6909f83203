"""What every engine program answers about its weights and their memory: refusals, and SGLang's names of parts of the memory."""

from __future__ import annotations

from sampler.engine.api.errors import bad_value

KV_CACHE, WEIGHTS, CUDA_GRAPH = "kv_cache", "weights", "cuda_graph"
TAGS = (KV_CACHE, WEIGHTS, CUDA_GRAPH)  # SGLang's

REFUSED = (
    "Weights were not updated: sequences that are paused in place would go on over a stale cache. Pause with mode "
    "retract or abort, or send flush_cache=false."
)
ASLEEP = "Weights were not updated: their memory is released. Call /resume_memory_occupation first."
BUSY = "Memory was not released: requests hold the cache. Pause with mode retract or abort first."
STALE = (
    "Still paused: memory is released, or the weights have no values since. Resume it, and update the weights first."
)


def memory_tags(tags: list[str] | None) -> list[str]:
    """All if none is given, as in SGLang. Raises ApiError for an unknown one, which SGLang accepts."""
    unknown = [tag for tag in tags or () if tag not in TAGS]
    if unknown:
        raise bad_value(f"tags: {str(unknown[0])[:100]!r} is unknown; expected some of {', '.join(TAGS)}")
    return list(tags or TAGS)
