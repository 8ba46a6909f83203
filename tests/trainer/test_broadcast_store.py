"""Where engines meet for a broadcast, and trainers of one machine: at one address alone."""

import os
import socket
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousParameters

from shared.processes.mongod import free_port
from trainer.launch import rendezvous
from trainer.process.listening import listening_store

LISTENS = "0A"


def _listening(port: int) -> list[str]:
    """Local addresses that listen on `port`, as the kernel writes them."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [row[1] for row in rows if row[3] == LISTENS and row[1].endswith(f":{port:04X}")]


def test_the_store_listens_at_its_address_alone_and_on_the_port_that_was_asked_for() -> None:
    store = listening_store("127.0.0.1", 0, 10.0)
    assert _listening(store.port) == [f"0100007F:{store.port:04X}"]
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", store.port), timeout=5)
    other = dist.TCPStore("127.0.0.1", store.port, None, False, wait_for_workers=False)
    other.set("key", "value")
    assert store.get("key") == b"value"
    port = store.port
    del other, store
    assert listening_store("localhost", port, 10.0).port == port


def test_trainers_of_one_machine_meet_on_loopback_and_gloo_and_nccl_stay_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    for name in variables:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    port = free_port()
    alone = RendezvousParameters("static", f"localhost:{port}", "run", min_nodes=1, max_nodes=1, rank=0)
    meeting = rendezvous(alone)
    found = meeting.next_rendezvous()
    assert _listening(port) == [f"0100007F:{port:04X}"]
    assert (found.bootstrap_store_info.master_addr, found.world_size) == ("127.0.0.1", 1)
    assert [os.environ[name] for name in variables] == ["lo", "lo"]
    several = RendezvousParameters("static", f"localhost:{port}", "run", min_nodes=2, max_nodes=2, rank=0)
    assert type(rendezvous(several)) is not type(meeting), "other machines must reach it"


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(OSError, match="assign requested address"):
        listening_store("192.0.2.1", 0, 10.0)
