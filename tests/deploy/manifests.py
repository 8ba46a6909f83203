"""The manifests of deploy/k8s as tests read them: as files, and as `kubectl`'s Kustomize builds them, where it is."""

import functools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
K8S = ROOT / "deploy" / "k8s"
BASE = K8S / "base"
GATEWAY = K8S / "components" / "gateway"
VLLM = K8S / "components" / "vllm"
OVERLAYS = sorted(path.parent for path in K8S.glob("overlays/*/kustomization.yaml"))
KUBECTL = shutil.which("kubectl")
MONGODB = "mongodb-svc"  # the label that the operator gives its pods
FOREIGN = {"keda.sh/v1alpha1", "mongodbcommunity.mongodb.com/v1"}
# What stands in the manifests, and what it is here.
PLACES = {
    "/models/initial": str(ROOT / "assets" / "example" / "model"),
    "/etc/tandem/run.yml": str(BASE / "run.yml"),
    "$(POD_IP)": "10.0.0.9",
    "$(POD_INDEX)": "1",
    "$(ENGINE_API_KEY)": "a key",
    "$(POD_NAMESPACE)": "mine",
}
Manifest = dict[str, Any]


def of(folder: Path) -> list[Manifest]:
    names = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    return [document for name in names for document in yaml.safe_load_all((folder / name).read_text())]


def of_base() -> list[Manifest]:
    return of(BASE)


def built(overlay: Path) -> list[Manifest]:
    if KUBECTL is None:
        pytest.skip("no kubectl here: its Kustomize builds the overlays")
    return list(yaml.load_all(kustomized(overlay), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


@functools.cache
def kustomized(overlay: Path) -> str:
    assert KUBECTL is not None
    done = subprocess.run(
        [KUBECTL, "kustomize", str(overlay)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def sets() -> Iterator[Any]:
    yield pytest.param(None, id="base")
    yield pytest.param(GATEWAY, id="base and gateways")
    yield from (pytest.param(overlay, id=overlay.name) for overlay in OVERLAYS)


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """(name of the workload, its pod)"""
    for manifest in manifests:
        spec = manifest.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if "template" in spec:
            yield manifest["metadata"]["name"], spec["template"]["spec"]


def words(container: Manifest) -> list[str]:
    line = [*container["command"], *container.get("args", [])]
    for place, here in PLACES.items():
        line = [word.replace(place, here) for word in line]
    return line
