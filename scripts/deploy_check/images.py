"""What lies in the images and runs in the containers: sizes, programs, torch, secrets, MCP-Docker's counts."""

import re
from typing import Any

from scripts.deploy_check.compose import Compose, name_of, service_of

# A private key, a connection string with a password, keys of well-known services, an authorization header with a value.
SECRET = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----|mongodb(\+srv)?://[^/:@ ]+:[^@/ $<{}]+@|\bsk-[A-Za-z0-9]{20,}|\bhf_[A-Za-z0-9]{20,}"
    r"|AKIA[0-9A-Z]{16}|ghp_[A-Za-z0-9]{30,}"
)
FIND_TORCH = (
    r"find / -xdev \( -path '*/site-packages/torch*' -o -path '*/site-packages/nvidia*' -o -name 'libtorch*' \)"
    " -prune -not -path '/proc/*' -print"
)
PLACES = ("/app", "/opt/tandem", "/etc", "/run", "/home", "/root", "/credentials", "/output", "/tmp", "/build")


def size_mb(compose: Compose, image: str) -> float:
    return int(compose.docker("image", "inspect", "-f", "{{.Size}}", image)) / 1e6


def own_mb(compose: Compose, image: str, base: str) -> float:
    """Without the layers of the base image."""
    return size_mb(compose, image) - size_mb(compose, base)


def files_with_torch(compose: Compose, image: str) -> list[str]:
    """Folders of torch and of NVIDIA's packages, and torch as a module that can be found."""
    folders = _shell(compose, image, FIND_TORCH).split()
    answer = _shell(compose, image, "python -c 'import importlib.util as u; print(bool(u.find_spec(\"torch\")))'")
    return folders + (["importable"] if "True" in answer else [])


def secrets_in(compose: Compose, image: str) -> list[str]:
    """Files of the image, its variables and its history, that look like secrets. Test data of packages is looked at too."""
    places = " ".join(PLACES)
    paths = _shell(compose, image, f"grep -rIlE -e '{SECRET}' {places} 2>/dev/null | sort || true").split("\n")
    metadata = compose.docker("image", "inspect", "-f", "{{json .Config.Env}} {{json .Config.Labels}}", image)
    metadata += compose.docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", image)
    paths += ["its variables or history"] if re.search(SECRET, metadata) else []
    # Examples in documentation strings name users and passwords.
    return [path for path in paths if path and not path.startswith(KNOWN_EXAMPLES)]


PACKAGES = "/opt/tandem/lib/python3.11/site-packages"
KNOWN_EXAMPLES = (
    f"{PACKAGES}/pymongo/",
    f"{PACKAGES}/cryptography/hazmat/primitives/serialization/ssh.py",  # the first line of a key, which it looks for
    "/app/shared/redaction.py",
)


METRICS = (
    "import re, urllib.request as u; token = open('/run/mcp/token').read().strip();"
    "r = u.Request('http://127.0.0.1:9700/metrics', headers={'Authorization': 'Bearer ' + token});"
    "page = u.urlopen(r, timeout=8).read().decode();"
    "print(*re.findall(r'^\\S*(?:sessions_\\S*total|calls_total)\\S* .*', page, re.M), sep='\\n')"
)


def mcp_counts(compose: Compose) -> str:
    """What MCP-Docker's `/metrics` says of sessions and calls, a line each."""
    return compose.run("exec", "-T", "mcp", "python", "-c", METRICS)


def running(compose: Compose) -> dict[str, list[str]]:
    """{service: the command lines that run in its first container}"""
    by_service: dict[str, list[str]] = {}
    for container in compose.containers():
        if container["State"]["Running"] and service_of(container) not in by_service:
            lines = compose.docker("top", name_of(container), "-eo", "user,pid,rss,args").splitlines()[1:]
            by_service[service_of(container)] = [line.strip() for line in lines]
    return by_service


def confinement(container: dict[str, Any]) -> str:
    """Its user, whether its root is read-only, and the capabilities that it lost."""
    host = container["HostConfig"]
    return f"user={container['Config']['User']} read_only={host['ReadonlyRootfs']} cap_drop={host['CapDrop']}"


def _shell(compose: Compose, image: str, command: str) -> str:
    # As root, who sees every file.
    return compose.docker("run", "--rm", "--user", "0", "--network", "none", "--entrypoint", "sh", image, "-c", command)
