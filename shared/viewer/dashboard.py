"""A run's dashboard."""

from typing import Any

from shared.store.views.runs import RunRow, run_row
from shared.viewer.asked import PageRequest


async def dashboard_page(asked: PageRequest) -> dict[str, Any]:
    row: RunRow = await run_row(asked.store)
    return {"row": row}
