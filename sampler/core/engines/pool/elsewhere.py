"""Engines that no request of this machine reaches: those announced at a loopback address of another one."""

import ipaddress
from urllib.parse import urlsplit

from shared.documents.run import InferenceService


def unreachable(service: InferenceService, host: str) -> str | None:
    """Why the machine named `host` cannot reach the engine, and the remedy. None: it may, as far as is known."""
    keepers_host = _host_of(service.keeper)
    if keepers_host in (None, host) or not _is_loopback(service.url):
        return None
    return (
        f"engine {service.url} is not used: its keeper is on {keepers_host}, and on this machine, {host}, the address means "
        f"{host} itself; expected an address of {keepers_host} that others reach: start its keeper with engine_host "
        "(or engine_url), its launcher with NODE_ADDR"
    )


def _host_of(keeper: str | None) -> str | None:
    """From `keeper:HOST:PID`."""
    parts = (keeper or "").split(":")
    return parts[1] if len(parts) == 3 else None


def _is_loopback(url: str) -> bool:
    try:
        name = urlsplit(url).hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:  # a name, which means the same everywhere; or no URL, of which the client says more
        return False
