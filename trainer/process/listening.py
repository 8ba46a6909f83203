"""A store of torch that listens at one address."""

import socket
from datetime import timedelta

import torch.distributed as dist


def listening_store(address: str, port: int, limit_s: float) -> dist.TCPStore:
    """Listen only at `address`: torch would listen on every network of the machine, without authentication, and would wait
    here for all peers. Raises OSError if this machine does not have the address."""
    family, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen()
        host, bound = listening.getsockname()[:2]
        limit = timedelta(seconds=limit_s)
        return dist.TCPStore(
            host, bound, None, True, limit, wait_for_workers=False, master_listen_fd=listening.detach()
        )
