"""Claims the settlement of groups that a process has completed itself, several with one command.

finish_slot ─▶ complete, by its answer ─▶ claim ─▶ settled          TaskVerbs.claim_settlement: what other processes left
"""

from collections.abc import Sequence
from typing import Any

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents import Task
from shared.documents.states import TaskStatus
from shared.store.malformed import MalformedVerbs
from shared.store.retry import survives_outages
from shared.store.slots import due_for_settlement, leased_for_settlement
from shared.store.spoilt_tasks import SpoiltTasks

Document = dict[str, Any]


@survives_outages
class SettlementVerbs:
    def __init__(self, database: AsyncDatabase[Document], malformed: MalformedVerbs) -> None:
        self._tasks: AsyncCollection[Document] = database["tasks"]
        self._spoilt = SpoiltTasks(self._tasks, malformed)

    # 6 parameters: those of `TaskVerbs.claim_settlement`, and which groups
    async def claim(
        self,
        ids: Sequence[str],
        worker: str,
        *,
        policy: str,
        lease_s: float,
        left: Sequence[str] | None = None,
        rules: Sequence[int] | None = None,
    ) -> list[Task]:
        """Lease those of these groups that are complete and that no settler has; returns those that `worker` has then. It should
        have none of them before, and a repetition finds those that it leased."""
        if not ids:
            return []
        among: Document = {"_id": {"$in": list(ids)}}
        await self._tasks.update_many(
            among | due_for_settlement(policy, left, rules), leased_for_settlement(worker, lease_s)
        )
        held = among | {"status": TaskStatus.COMPLETED.value, "settler": worker}
        tasks = [await self._spoilt.read(document) async for document in self._tasks.find(held)]
        return [task for task in tasks if task is not None]
