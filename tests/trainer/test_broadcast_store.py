"""Where engines meet for a broadcast: at the announced address alone."""

import socket
from pathlib import Path

import pytest
import torch.distributed as dist

from trainer.publishing.send import listening_store

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


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(OSError, match="assign requested address"):
        listening_store("192.0.2.1", 0, 10.0)
