"""Which version an engine should serve.

While evaluation tasks of a version are open, one engine of the policy serves that version until the last of them has ended: the
one whose URL sorts first among those that do not lag. The others continue. An engine with `serve_version` serves that one, as
soon as it is published, and never another; not one that is pruned or withdrawn, unless the engine has it already.
"""

from sampler.engine.keeper.config import KeeperConfig
from shared.documents.run import PolicyVersion
from shared.errors import DataError
from shared.store import Store


async def target_version(store: Store, config: KeeperConfig, url: str, refused: int) -> PolicyVersion | None:
    """The newest version, or that of the oldest open evaluation round if this engine serves evaluations.

    The newest is read first: a round is queued before the next version is announced, so it cannot be missed. `refused`: a
    version that the engine cannot serve.
    """
    if config.serve_version is not None:
        return await store.versions.find(config.policy, config.serve_version)
    newest = await store.versions.newest(config.policy)
    awaited = None if newest is None else await store.evaluation.awaited_version(config.policy, before=newest.version)
    if awaited is None or awaited == refused or config.follow_every > 1:
        return newest
    live = await store.services.live(config.policy)
    others = [service.url for service in live if service.follow_every == 1 and service.serve_version is None]
    if min([url, *others]) != url:
        return newest
    evaluated = await store.versions.get(config.policy, awaited)
    return newest if evaluated.pruned or evaluated.withdrawn_to is not None else evaluated


async def loadable_from(store: Store, target: PolicyVersion) -> list[PolicyVersion]:
    """All versions of the policy, of which `target` is put together. Raises DataError if its files are, or will be, deleted."""
    published = await store.versions.all(target.policy)
    where = f"policy {target.policy}: version {target.version}"
    for stored in published:
        if stored.version == target.version and stored.withdrawn_to is not None:
            raise DataError(
                f"{where} was withdrawn: training went on from step {stored.withdrawn_to} without it; pin actors to another one"
            )
        if stored.version == target.version and stored.pruned:
            raise DataError(
                f"{where} is pruned: its files are deleted; pin actors to a newer one, and start its engine before keep_versions "
                "newer ones are published"
            )
    return published
