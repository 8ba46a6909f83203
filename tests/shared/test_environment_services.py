from shared.documents.run import EnvironmentService
from shared.store import Store

LOOPBACK = "http://127.0.0.1:9700/api"


def service_of(host: str, url: str = LOOPBACK) -> EnvironmentService:
    return EnvironmentService(id=url, url=url, kinds=["guess"], capacity=1, host=host)


async def test_two_machines_do_not_share_an_address_of_one_machine(store: Store) -> None:
    assert await store.environments.heartbeat(service_of("one"))
    assert not await store.environments.heartbeat(service_of("two"))
    assert await store.environments.heartbeat(service_of("one"))
    await store.environments.remove(LOOPBACK, "two")
    assert [each.host for each in await store.environments.live()] == ["one"]
    await _let_it_be_silent(store)
    assert await store.environments.heartbeat(service_of("two")), "a killed one is not waited for without end"
    assert [each.host for each in await store.environments.live()] == ["two"]


async def test_an_address_that_others_reach_may_be_taken_over(store: Store) -> None:
    """A container that is started again has another host name."""
    url = "http://worlds:9700/api"
    for host in ("one", "two"):
        assert await store.environments.heartbeat(service_of(host, url))
    assert [each.host for each in await store.environments.live()] == ["two"]


async def _let_it_be_silent(store: Store) -> None:
    silent = {"$dateSubtract": {"startDate": "$$NOW", "unit": "hour", "amount": 1}}
    await store.database["environment_services"].update_many({}, [{"$set": {"heartbeat": silent}}])
