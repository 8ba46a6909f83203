"""The lengths of context of a pool's engines, as far as they are known: their keepers report them at the engine's start, and an
engine that refuses a request as too long names its own.

A reply that would not fit gets fewer tokens, and ends by its length as at the limits of the settings; so no request is sent twice
that an engine would refuse twice.
"""

import logging
from collections.abc import Collection, Mapping
from sys import maxsize

from sampler.core.errors import ContextTooLong

log = logging.getLogger(__name__)

RESERVE = 2  # tokens that engines leave unused at the end of their context


class EngineContexts:
    """`known`: tokens by URL."""

    def __init__(self) -> None:
        self._refused: dict[str, int] = {}
        self._reported: dict[str, int] = {}

    @property
    def known(self) -> dict[str, int]:
        shortest = {url: min(context, self._refused.get(url, context)) for url, context in self._reported.items()}
        return self._refused | shortest

    def learn(self, url: str, refusal: ContextTooLong, length: int) -> None:
        """Returns if a prompt of `length` tokens has room for a reply there. Raises the refusal."""
        if refusal.context is None or self.known.get(url, maxsize) <= refusal.context:
            raise refusal
        self._refused[url] = refusal.context
        log.warning(
            "the context of engine %s has %d tokens, fewer than a request needed: replies are cut there (length_limit); start it "
            "with a longer one (--context-length), or lower max_tokens",
            url,
            refusal.context,
        )
        if self._room(refusal.context, length) <= 0:
            raise refusal

    def report(self, contexts: Mapping[str, int]) -> None:
        """What keepers say of their engines. A shorter one by which an engine refused a request stays."""
        self._reported = dict(contexts)

    def budget(self, url: str, length: int, budget: int) -> int:
        """Of at most `budget` new tokens behind a prompt of `length`, what the engine has room for; at least one."""
        context = self.known.get(url)
        return budget if context is None else max(1, min(budget, self._room(context, length)))

    def room(self, length: int) -> int:
        """New tokens that fit behind a prompt of `length` in every engine that is known."""
        return min((self._room(context, length) for context in self.known.values()), default=maxsize)

    def keep(self, urls: Collection[str]) -> None:
        """Forget engines that are no longer listed: one that comes back may have another context."""
        self._refused = {url: context for url, context in self._refused.items() if url in urls}

    def alarms(self, max_tokens: int) -> list[str]:
        return [
            f"the context of engine {url} has {context} tokens, and max_tokens is {max_tokens}: episodes end at "
            f"{context - RESERVE} (length_limit). Start it with --context-length {max_tokens + RESERVE}, or lower max_tokens"
            for url, context in self.known.items()
            if context - RESERVE < max_tokens
        ]

    def _room(self, context: int, length: int) -> int:
        return context - RESERVE - length
