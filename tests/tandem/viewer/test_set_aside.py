"""A task that bugs set aside, and the traceback of a bug, are on the viewer's pages; so is what is malformed."""

from shared.documents.states import RecordStatus, Termination
from shared.errors import MalformedDocument
from shared.store import Store
from tests.shared.builders import claim, import_tasks
from tests.tandem.viewer.conftest import ClientOf

TRACEBACK = '  File "x.py", line 1, in run\nTypeError: <script>half'


async def test_the_first_page_lists_tasks_set_aside_and_a_record_has_its_traceback(
    store: Store, client_of: ClientOf
) -> None:
    await import_tasks(store, 1, num_generations=2)
    held = await claim(store)
    await store.records.start(held, "w")
    error = "TypeError: <b>half</b>; at x.py:1, in run"
    how = {"termination": Termination.UNFORESEEN.value, "error": error, "traceback": TRACEBACK}
    await store.records.move(held.record_id, RecordStatus.FAILED, how)
    await store.tasks.retry_slot(held, error, delay_s=0, max_failures=3, bugs_at_most=1)
    await store.malformed.note(MalformedDocument("tasks", "main:train:0:t9", "slots: expected a list"))
    viewer = client_of()
    page = (await viewer.get(f"/runs/{store.run}")).text
    assert "set aside:" in page
    assert f'href="/runs/{store.run}/groups/{held.task.id}"' in page
    assert "1 of its episodes met a bug; the last: TypeError: &lt;b&gt;half" in page
    assert "malformed: tasks main:train:0:t9: slots: expected a list" in page
    record = (await viewer.get(f"/runs/{store.run}/rollouts/{held.record_id}")).text
    assert "TypeError: &lt;script&gt;half" in record
