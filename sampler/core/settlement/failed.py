"""A group whose settlement met a bug: counted in its task, settled again later, and abandoned after `max_failures` of them."""

import logging

from sampler.core.retry_delay import retry_delay_s
from sampler.core.settings.core_config import CoreConfig
from shared.documents import Task
from shared.documents.states import RecordStatus, SlotStatus
from shared.outside_text import error_text
from shared.store import Store
from shared.unforeseen import Bug, is_of_the_process

log = logging.getLogger(__name__)


async def fail_settlement(store: Store, config: CoreConfig, task: Task, bug: Bug) -> None:
    """Whatever broke the settlement may break this too: then the group's lease ends by itself, and it is claimed again."""
    before = 0 if task.unforeseen is None else task.unforeseen.settlements
    try:
        is_over = await store.unforeseen.settlement_failed(
            task, bug.error, delay_s=retry_delay_s(config, before), max_failures=config.queue.max_failures
        )
        if is_over:
            names = [str(slot.record_id) for slot in task.slots if slot.status is SlotStatus.SCORED]
            abandoned = dict.fromkeys(names, RecordStatus.ABANDONED)
            await store.records.settle_group(task.id, abandoned, {}, dict.fromkeys(names, f"settlement: {bug.error}"))
    except BaseException as exc:  # also SystemExit and panics of foreign code; the process's own is raised again
        if is_of_the_process(exc):
            raise
        log.error("after a bug, the settlement of %s was not counted: %s", task.id, error_text(exc))
