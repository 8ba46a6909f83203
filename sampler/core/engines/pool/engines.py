"""The engines that a sampler process uses, as listed in the database: a pool for each policy that takes turns, and one for each
alternative source of turns.

An engine being updated holds its requests and answers them afterwards: it counts as up. A draining engine gets no requests
until it serves its new weights, one that is asleep none until it is awake. An engine with `follow_every` above 1 serves only
turns of the source "lagging", one with `serve_version` only those of actors that are pinned to that version.
"""

import logging
import socket
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.pool.elsewhere import unreachable
from sampler.core.engines.pool.engine_pool import EnginePool, PoolLimits, PoolStats
from sampler.core.engines.pool.engine_pool import Service as PoolService
from sampler.core.engines.pool.policy_client import PolicyClient
from sampler.core.engines.pool.turn_sources import LAGGING, Source, check_tokenizers
from sampler.core.rendering.chosen_template import TemplateChoice, chosen_template
from sampler.core.rendering.template import ChatTemplate
from sampler.core.settings.core_config import CoreConfig
from shared.documents.run import InferenceService
from shared.documents.states import ServiceStatus
from shared.errors import ConfigError
from shared.files.json_file import read_json_file
from shared.store import Store

log = logging.getLogger(__name__)

PINNED_WAIT_S = 60.0  # of an episode for a pinned version that went away; then its slot is released at no cost
AS_SEEN = {ServiceStatus.UPDATING: ServiceStatus.UP, ServiceStatus.ASLEEP: ServiceStatus.DRAINING}  # by the pool


class Engines:
    """`policy_clients`: by policy; `sources`: of `turn_sources`; `every_version`: by policy, engines of all versions. `look`
    rereads the list.

    Raises ConfigError for a model's folder without a tokenizer, or a chat template whose turns have no detectable end.
    """

    def __init__(self, store: Store, client: EngineClient, config: CoreConfig) -> None:
        self._store = store
        self._client = client
        self._config = config
        self._listed: dict[str, list[InferenceService]] = {}
        self._unreachable: dict[str, list[str]] = {}  # by policy: the sentences
        self._reported: set[str] = set()
        self._host = socket.gethostname()
        self._policies = list(config.policies)
        self._unchecked: set[str] = set()
        self._models = {config.policy: config.model_name_or_path, **config.other_policies}
        self.policy_clients = {policy: self._policy_client(policy, model) for policy, model in self._models.items()}
        self.every_version = {policy: self._pool(policy, model, lagging=None) for policy, model in self._models.items()}
        self._sources: dict[str, Source] = {}
        self.sources = self.sources_under(config)

    def clients_under(self, config: CoreConfig) -> dict[str, PolicyClient]:
        """By policy: the same engines, with the templates of other settings. Raises ConfigError."""
        return {
            policy: replace(self.policy_clients[policy], template=self._template(policy, model, config))
            for policy, model in self._models.items()
        }

    def sources_under(self, config: CoreConfig) -> list[Source]:
        """The sources of other settings; the engines of each are looked at from now on."""
        for name in config.sampling.turn_sources:
            if name not in self._sources:
                self._sources[name] = self._source(name)
                if name != LAGGING and name not in self._policies:
                    self._policies.append(name)
                    self._unchecked.add(name)
        return [replace(self._sources[name], share=share) for name, share in config.sampling.turn_sources.items()]

    async def refresh(self) -> None:
        """Raises ConfigError if a source of turns has another tokenizer."""
        for policy in self._policies:
            await self._look_at(policy)
        listed = [service for services in self._listed.values() for service in services]
        contexts = {service.url: service.context for service in listed if service.context is not None}
        for pool in self._pools():
            pool.contexts.report(contexts)
        for policy in [p for p in self._unchecked if self._listed[p] and self._listed[self._config.policy]]:
            await check_tokenizers(self._store, self._config.policy, policy)
            self._unchecked.discard(policy)

    def ready(self) -> bool:
        """Whether every policy that takes turns has an engine."""
        return all(self._services_for(policy, lagging=False) for policy in self._config.policies)

    def up(self) -> list[InferenceService]:
        """Each engine once: where several policies are adapters of one, each of its services reports the load of all."""
        listed = [service for services in self._listed.values() for service in services]
        return list({service.url: service for service in listed if service.status is ServiceStatus.UP}.values())

    def served_versions(self) -> list[int]:
        """Versions of the process's own policy."""
        own = self._services_for(self._config.policy, lagging=False)
        return sorted({service.version for service in own if service.status is ServiceStatus.UP})

    def alarms(self) -> list[str]:
        """Engines that are listed and cannot be used from this machine, or only for a part of an episode."""
        short = [alarm for pool in self._pools() for alarm in pool.contexts.alarms(self._config.budget.max_tokens)]
        return [
            *(sentence for sentences in self._unreachable.values() for sentence in sentences),
            *dict.fromkeys(short),
        ]

    def check_truncation(self, config: CoreConfig) -> None:
        """Raises ConfigError for an engine whose log-probs could not be trained: training truncates the distribution."""
        for policy in config.trained_policies:
            for service in self._listed.get(policy, ()):
                if (problem := config.sampling.truncation.engine_problem(service.kind)) is not None:
                    raise ConfigError(f"engine {service.url}: {problem}")

    def stats(self) -> PoolStats:
        """Sum over all requests since the start."""
        return _sum(pool.stats for pool in self._pools())

    async def close(self) -> None:
        for pool in self._pools():
            await pool.close()

    # ------------------------------------------------------------------ inside

    async def _look_at(self, policy: str) -> None:
        listed = [(service, unreachable(service, self._host)) for service in await self._store.services.live(policy)]
        self._listed[policy] = [service for service, why in listed if why is None]
        self._unreachable[policy] = [why for _, why in listed if why is not None]
        for why in self._unreachable[policy]:
            if why not in self._reported:
                self._reported.add(why)
                log.warning("%s", why)

    def _services_for(self, policy: str, *, lagging: bool | None) -> list[InferenceService]:
        """`lagging` None: all, also those that serve one version alone."""
        listed = self._listed.get(policy, ())
        if lagging is None:
            return list(listed)
        return [s for s in listed if (s.follow_every > 1) is lagging and s.serve_version is None]

    async def _services(self, policy: str, lagging: bool | None) -> Sequence[PoolService]:
        """Read on demand, so that a pool's list is as fresh as the pool assumes."""
        await self._look_at(policy)
        return [seen(service) for service in self._services_for(policy, lagging=lagging)]

    def _policy_client(self, policy: str, model: Path) -> PolicyClient:
        template = self._template(policy, model, self._config)
        check_vocabulary(model, template)
        return PolicyClient(template, self._pool(policy, model, lagging=False))

    def _template(self, policy: str, model: Path, config: CoreConfig) -> ChatTemplate:
        prompt = config.prompt
        which = prompt.chat_template if policy == config.policy or prompt.chat_template == "none" else "auto"
        choice = TemplateChoice(which, prompt.tool_call_parser, prompt.chat_template_kwargs)
        template = chosen_template(model, choice)
        return replace(template, max_tokens=config.budget.max_tokens)

    def _source(self, name: str) -> Source:
        """Its turns are trained by the process's own policy: so the tokens of any source must be in its vocabulary."""
        policy = self._config.policy if name == LAGGING else name
        pool = self._pool(policy, self._config.model_name_or_path, lagging=name == LAGGING)
        return Source(name, None if name == LAGGING else name, 0.0, pool)

    def _pool(self, policy: str, model: Path, *, lagging: bool | None) -> EnginePool:
        limits = PoolLimits(refresh_s=self._config.queue.poll_s)
        if lagging is None:
            limits = replace(limits, wait_s=PINNED_WAIT_S)
        services = partial(self._services, policy, lagging)
        return EnginePool(self._client, services, limits, vocabulary=vocabulary_of(model))

    def _pools(self) -> list[EnginePool]:
        own = [client.pool for client in self.policy_clients.values()]
        return [*own, *self.every_version.values(), *(source.pool for source in self._sources.values())]


def vocabulary_of(model: Path) -> int | None:
    """Vocabulary size from the config.json of the model's folder; None if it contains none. Raises ConfigError."""
    if not (file := model / "config.json").is_file():
        return None
    config = read_json_file(file, "the configuration of the model", keys_once=False)
    for part in (config, config.get("text_config")):
        size = part.get("vocab_size") if isinstance(part, dict) else None
        if type(size) is int and size > 0:
            return size
    return None


def check_vocabulary(model: Path, template: ChatTemplate) -> None:
    """Raises ConfigError if the model lacks tokens of its tokenizer: an engine would refuse every prompt that has one.

    Added tokens may lie behind the vocabulary if no prompt uses them: those that the chat template writes may not.
    """
    size = vocabulary_of(model)
    ids = template.tokenizer.get_vocab(with_added_tokens=False).values()
    written = [template.text, *template.special_tokens.values()]
    added = template.tokenizer.get_added_tokens_decoder().items()
    used = [token for token, of in added if any(of.content in text for text in written)]
    if size is not None and (beyond := [token for token in (*ids, *used) if token >= size]):
        raise ConfigError(
            f"{model}: its tokenizer has ids up to {max(beyond)}, and its config.json has vocab_size {size}: the model lacks "
            f"{len(beyond)} tokens; expected the tokenizer that belongs to the model, or a model that was resized to it "
            "(resize_token_embeddings)"
        )


def _sum(several: Iterable[PoolStats]) -> PoolStats:
    return PoolStats(*(sum(values) for values in zip(*map(astuple, several), strict=True)))


@dataclass(frozen=True, slots=True)
class _Seen:
    """An engine in the form that the pool reads."""

    url: str
    version: int
    status: str
    running: int
    capacity: int
    adapter: str | None


def seen(service: InferenceService) -> _Seen:
    status = AS_SEEN.get(service.status, service.status)
    return _Seen(service.url, service.version, status.value, service.running, service.capacity, service.adapter)
