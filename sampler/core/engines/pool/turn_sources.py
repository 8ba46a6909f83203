"""Cross-policy sampling: each turn of an episode is drawn from one of several sources (AgentRL, arXiv 2510.04206, section 3).

    the policy's engines                                1 − the shares of the others
    "lagging": its engines with follow_every > 1        a share of turn_sources: older weights of the same policy
    another policy's engines                            likewise: context for this policy, which never trains them

Tokens of older weights are trained like all others: their true log-probs are stored, and the importance ratios of the loss use
these. Evaluation uses only the policy's own engines.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from sampler.core.engines.pool.engine_pool import EnginePool
from shared.errors import ConfigError
from shared.store import Store

LAGGING = "lagging"
TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class Source:
    """`policy`: the engines' policy, None for the policy's own (older) engines. `share`: of the turns."""

    name: str
    policy: str | None
    share: float
    pool: EnginePool


async def draw(own: EnginePool, sources: Sequence[Source]) -> Source:
    """Draw the source of one turn at random. A source without a running engine cedes its share to the policy's own engines."""
    chance = random.random()
    for source in sources:
        chance -= source.share
        if chance < 0:
            if await source.pool.is_up():
                return source
            break
    return Source("", None, 0.0, own)


async def check_tokenizers(store: Store, own: str, other: str) -> None:
    """Raises ConfigError if version 0 of the two policies has different tokenizers: their ids would stand for different texts."""
    ours, theirs = [(await store.versions.get(policy, 0)).files.get(TOKENIZER) for policy in (own, other)]
    if ours and theirs and ours["sha256"] != theirs["sha256"]:
        raise ConfigError(
            f"turn_sources: {TOKENIZER} of policy {other} differs from that of policy {own}; turns can only be drawn from "
            "policies with the same tokenizer (as other_policies they may differ: each has its own conversation)"
        )
