"""Fields that processes of earlier versions refuse are in a document only where they say something."""

from shared.documents.agent_sessions import AgentSession
from shared.store import Store
from tests.shared.builders import claim, import_tasks


async def test_a_slot_says_that_its_agent_was_not_told_only_as_long_as_it_is_so(store: Store) -> None:
    """Processes of earlier versions, which share the run, refuse fields that they do not know."""
    await import_tasks(store, 1, num_generations=1)

    async def says() -> object:
        task = await store.database["tasks"].find_one({})
        assert task is not None
        return task["slots"][0].get("unconfirmed", "nothing")

    assert await says() == "nothing"
    await store.tasks.release_slot(await claim(store))
    assert await says() == "nothing"
    got = await claim(store, unconfirmed=True)
    assert await says() is True
    await store.tasks.renew_leases([got], 60, "w")
    assert await says() == "nothing"
    await store.tasks.release_slot(got)
    await store.tasks.release_slot(await claim(store, unconfirmed=True))
    assert await says() == "nothing"
    await claim(store, unconfirmed=True, lease_s=0.0)
    got = await claim(store)
    assert (await says(), got.task.slots[0].failures) == ("nothing", 0)


async def test_a_session_without_replayed_replies_does_not_speak_of_them(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1)
    got = await claim(store)
    await store.sessions.begin(got, "w", AgentSession(key_hash="k"))
    record = await store.database["records"].find_one({})
    assert record is not None
    assert "replayed" not in record["session"]
    await store.sessions.count_replays(got.record_id, "one", 2)
    found = await store.records.get(got.record_id)
    assert found is not None
    assert found.session is not None
    assert found.session.replayed == {"one": 2}
