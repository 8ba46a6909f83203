"""deploy/k8s while it runs: upgrades, bounds, who reaches whom, keys, namespaces, and the end of a trainer's container."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.manifests import BASE, K8S, MONGODB, OVERLAYS, Manifest, built, pods, words


def test_what_an_upgrade_changes_can_be_changed(manifests: list[Manifest]) -> None:
    """The template of a Job cannot, so `kubectl apply` of another setting, image or module would fail."""
    assert not [m["metadata"]["name"] for m in manifests if m["kind"] in ("Job", "Pod", "ReplicaSet")]
    claims = [m for m in manifests if m["kind"] == "StatefulSet" and "volumeClaimTemplates" in m["spec"]]
    assert not claims, "nor those of a StatefulSet"


def test_every_container_asks_for_what_it_needs_and_is_bounded(manifests: list[Manifest]) -> None:
    for name, pod in pods(manifests):
        for container in pod["containers"]:
            resources = container["resources"]
            assert {"cpu", "memory"} <= resources["requests"].keys(), name
            assert "memory" in resources["limits"], name
        for volume in pod["volumes"]:
            assert "emptyDir" not in volume or "sizeLimit" in volume["emptyDir"], f"{name}: {volume['name']}"
    for database in (m for m in manifests if m["kind"] == "MongoDBCommunity"):
        made = database["spec"]["statefulSet"]["spec"]
        assert all(claim["spec"]["resources"]["requests"]["storage"] for claim in made["volumeClaimTemplates"])
        assert all(box["resources"]["limits"]["memory"] for box in made["template"]["spec"]["containers"])


def test_pods_are_reached_by_those_alone_that_need_them(manifests: list[Manifest]) -> None:
    policies = {m["metadata"]["name"]: m["spec"] for m in manifests if m["kind"] == "NetworkPolicy"}
    assert policies["nobody"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
    names = {name for name, _ in pods(manifests)}
    with_service = {m["spec"]["selector"]["app"] for m in manifests if m["kind"] == "Service"}
    assert with_service | {"engine"} <= policies.keys(), "who is called has a policy that lets its callers in"
    for name, policy in policies.items():
        callers = [
            value
            for rule in policy.get("ingress", [])
            for peer in rule.get("from", [])
            for term in peer.get("podSelector", {}).get("matchExpressions", [])
            for value in term["values"]
        ]
        assert set(callers) <= names | {MONGODB, "sampler", "gateway"}, name
        assert "mcp" not in callers, "tools run what models write"


def test_engines_need_a_key_which_every_caller_has(manifests: list[Manifest]) -> None:
    for name, pod in pods(manifests):
        for container in pod["containers"]:
            line = words(container)
            if container["name"] == "engine":
                assert line[line.index("--api-key") + 1] == "a key"
                assert "httpGet" not in str(
                    [container[kind] for kind in ("startupProbe", "readinessProbe", "livenessProbe")]
                )
            elif container["name"] in ("keeper", "sampler", "gateway"):
                assert line[line.index("--engine_api_key_var") + 1] == "ENGINE_API_KEY", name
            if container["name"] in ("engine", "keeper", "sampler", "gateway"):
                keys = [one["valueFrom"]["secretKeyRef"] for one in container["env"] if one["name"] == "ENGINE_API_KEY"]
                assert keys == [{"name": "engine-key", "key": "key"}], name


@pytest.mark.parametrize("overlay", [overlay.name for overlay in OVERLAYS])
def test_the_namespace_stands_in_one_line_of_an_overlay(overlay: str, tmp_path: Path) -> None:
    shutil.copytree(K8S, tmp_path / "k8s")
    path = tmp_path / "k8s" / "overlays" / overlay / "kustomization.yaml"
    assert path.read_text().count("namespace: tandem") == 1
    path.write_text(path.read_text().replace("namespace: tandem", "namespace: mine"))
    manifests = built(path.parent)
    assert {m["metadata"]["namespace"] for m in manifests} == {"mine"}
    assert "tandem.svc" not in str(manifests)
    assert "NAMESPACE.svc" not in str(manifests).replace("$(POD_NAMESPACE).svc", "")
    base = [path for path in K8S.rglob("*.yaml") if "kustomization" not in path.name]
    assert not [path for path in base if "namespace: tandem" in path.read_text()]


@pytest.mark.parametrize(("program", "status"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_a_trainer_that_fails_fails_its_container(program: str, status: int) -> None:
    """Also one that ends at once, before the script looks at it: tried often, since the order is not fixed."""
    for _ in range(10):
        done = subprocess.run(["bash", str(BASE / "until_changed.sh"), "bash", "-c", program], timeout=60, check=False)
        assert done.returncode == status


@pytest.mark.parametrize("ended", [False, True])
def test_a_trainer_gets_the_signal_of_its_pod_and_waits_after_its_last_step(ended: bool, tmp_path: Path) -> None:
    """A checkpoint is written at SIGTERM."""
    program = (
        "echo up; exit 0"
        if ended
        else f"trap 'touch {tmp_path}/checkpoint; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    )
    process = subprocess.Popen(
        ["bash", str(BASE / "until_changed.sh"), "bash", "-c", program], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "up\n"
        if ended:
            assert process.stdout.readline().startswith("the run has ended")
            assert process.poll() is None
        process.terminate()
        assert process.wait(60) == 0
        assert ended or (tmp_path / "checkpoint").exists()
    finally:
        process.kill()
        process.wait(60)
        process.stdout.close()
