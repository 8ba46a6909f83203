"""deploy/k8s: every resource fits Kubernetes' schema, every command line its service, every name leads to something.

Where `kubectl` is, its Kustomize builds the overlays, and what it built is checked too. The schemas of KEDA and of the operator
of MongoDB are no part of those of Kubernetes: `CRD_FILES=keda.sh_scaledobjects.yaml:… pytest tests/deploy` checks these resources
by the published definitions.
"""

import importlib
import math
import os
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import typer
import yaml
from accelerate.commands.launch import launch_command_parser

from sampler.engine.keeper.config import KeeperConfig
from sampler.engine.local.__main__ import _parser as engine_parser
from sampler.engine.vllm.__main__ import _parser as vllm_parser
from sampler.settings import GatewayConfig, SamplerConfig
from shared.configuration.loading import ServiceConfig
from tandem import app
from tests.deploy.manifests import (
    BASE,
    FOREIGN,
    GATEWAY,
    K8S,
    MONGODB,
    OVERLAYS,
    ROOT,
    VLLM,
    Manifest,
    built,
    of_base,
    pods,
    words,
)
from trainer.settings.config import TrainerConfig

SERVICES: dict[str, type[ServiceConfig]] = {
    "sampler": SamplerConfig,
    "sampler.engine.keeper": KeeperConfig,
    "sampler.gateway": GatewayConfig,
    "trainer": TrainerConfig,
}


def test_every_resource_fits_the_schema_of_kubernetes(manifests: list[Manifest]) -> None:
    for manifest in manifests:
        if manifest["apiVersion"] not in FOREIGN:
            kubernetes_validate.validate(manifest, "1.32", strict=True)


def test_the_schema_refuses_a_misspelt_field() -> None:
    job = next(manifest for manifest in of_base() if manifest["metadata"]["name"] == "trainer")
    job["spec"]["replica"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, "1.32", strict=True)


@pytest.mark.skipif(not os.environ.get("CRD_FILES"), reason="CRD_FILES names no published definitions")
def test_resources_of_operators_fit_their_published_definitions() -> None:
    schemas = {}
    for name in os.environ["CRD_FILES"].split(":"):
        definition = yaml.safe_load(Path(name).read_text())["spec"]
        for version in definition["versions"]:
            schema = closed(version["schema"]["openAPIV3Schema"] | {"title": name})
            schema["properties"]["metadata"] = {"type": "object"}
            schemas[f"{definition['group']}/{version['name']}", definition["names"]["kind"]] = schema
    foreign = [manifest for manifest in of_base() if manifest["apiVersion"] in FOREIGN]
    for manifest in foreign:
        jsonschema.validate(manifest, schemas[manifest["apiVersion"], manifest["kind"]])
    assert len(foreign) == len(FOREIGN)


def closed(schema: Any) -> Any:
    """The schema without room for unknown fields, as the API server prunes them."""
    if isinstance(schema, dict):
        is_open = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
        own = (
            {}
            if is_open or "properties" not in schema or schema.get("type") != "object"
            else {"additionalProperties": False}
        )
        return {name: closed(value) for name, value in schema.items()} | own
    return [closed(value) for value in schema] if isinstance(schema, list) else schema


def test_every_command_line_is_one_that_its_program_takes(
    manifests: list[Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_CONNECTION_STRING", "mongodb://db:27017")
    monkeypatch.setenv("ENGINE_API_KEY", "a key")
    seen = {name for _, pod in pods(manifests) for name in (check_line(words(box)) for box in pod["containers"])}
    players = {"sampler", "gateway"} & {name for name, _ in pods(manifests)}
    assert players
    assert seen >= {
        *("sampler.gateway" if name == "gateway" else name for name in players),
        "sampler.engine.keeper",
        "trainer",
        "tandem metrics",
        "tandem tasks",
        "sampler.mcp_docker",
    }


def check_line(line: list[str]) -> str:
    """Have the program's own reader read its command line; returns the program's name."""
    if line[:2] == ["bash", "/etc/tandem-scripts/until_changed.sh"]:
        line = line[2:]
    if line[0] == "accelerate":
        given = launch_command_parser().parse_args(line[2:])
        assert (given.num_machines, given.machine_rank, given.module, given.training_script) == (2, 1, True, "trainer")
        TrainerConfig.load(given.training_script_args)
        return "trainer"
    if line[0] == "tandem":
        command: Any = typer.main.get_command(app)
        rest = line[1:]
        while hasattr(command, "commands"):
            command, rest = command.commands[rest[0]], rest[1:]
        command.make_context(line[1], list(rest))
        return " ".join(line[:2])
    assert line[0] in ("python", "python3")
    assert line[1] == "-m"
    module, arguments = line[2], line[3:]
    if module in SERVICES:
        SERVICES[module].load(arguments)
    elif module == "sampler.engine.local":
        engine_parser().parse_args(arguments)
    elif module == "sampler.engine.vllm":
        assert vllm_parser().parse_known_args(arguments)[1] == []
    elif module == "sampler.mcp_docker" and (ROOT / "sampler" / "mcp_docker" / "config.py").is_file():
        flags = {word.removeprefix("--") for word in arguments if word.startswith("--")}
        config = importlib.import_module("sampler.mcp_docker.config")
        kinds = [kind for kind in vars(config).values() if isinstance(kind, type) and issubclass(kind, ServiceConfig)]
        fields = {name for kind in kinds for name in kind.model_fields}
        assert flags <= fields, flags - fields
    else:
        assert module in ("sglang.launch_server", "sampler.mcp_docker"), module
    return module


def test_every_name_leads_to_something(manifests: list[Manifest]) -> None:
    """Volumes, claims, settings, services and selectors; secrets are the operator's or the reader's own."""
    claims = {m["metadata"]["name"] for m in manifests if m["kind"] == "PersistentVolumeClaim"}
    labels = {name: pod for name, pod in pods(manifests)}
    users = {u["name"] for m in manifests if m["kind"] == "MongoDBCommunity" for u in m["spec"]["users"]}
    for name, pod in labels.items():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for container in pod["containers"]:
            mounted = [mount["name"] for mount in container["volumeMounts"]]
            assert set(mounted) <= volumes.keys(), name
            for variable in container.get("env", []):
                secret = variable.get("valueFrom", {}).get("secretKeyRef", {}).get("name", "")
                assert not secret.startswith("mongodb-admin-") or secret.removeprefix("mongodb-admin-") in users
        assert {
            v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if "persistentVolumeClaim" in v
        } <= claims
    for service in (m for m in manifests if m["kind"] == "Service"):
        assert service["spec"]["selector"]["app"] in labels
    scaled = [m for m in manifests if m["kind"] in ("ScaledObject", "HorizontalPodAutoscaler")]
    assert {m["spec"]["scaleTargetRef"]["name"] for m in scaled} == {"sampler", "gateway"} & labels.keys()
    for budget in (m for m in manifests if m["kind"] == "PodDisruptionBudget"):
        assert budget["spec"]["selector"]["matchLabels"]["app"] in labels.keys() | {MONGODB}


def test_a_pod_ends_after_its_service_has_drained(manifests: list[Manifest]) -> None:
    grace_s = yaml.safe_load((BASE / "run.yml").read_text())["sampler"]["grace_s"]
    periods = {name: pod.get("terminationGracePeriodSeconds", 30) for name, pod in pods(manifests)}
    assert periods.get("sampler", math.inf) >= grace_s + 20
    assert periods.get("gateway", math.inf) >= grace_s + 20 + 5, "preStop sleeps for 5 s"
    assert periods["engine"] >= 60
    assert periods["trainer"] >= 120


def test_no_container_is_root_or_writes_where_it_need_not(manifests: list[Manifest]) -> None:
    for name, pod in pods(manifests):
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["automountServiceAccountToken"] is False, name
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False, name
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name


def test_samplers_are_scaled_by_a_figure_that_is_served(manifests: list[Manifest]) -> None:
    from tandem.commands.metrics import HELP

    scaled = [m for m in manifests if m["kind"] == "ScaledObject"]
    if "sampler" not in {name for name, _ in pods(manifests)}:
        assert not scaled
        return
    (trigger,) = scaled[0]["spec"]["triggers"]
    assert trigger["metadata"]["valueLocation"] in HELP
    episodes = yaml.safe_load((BASE / "run.yml").read_text())["sampler"]["max_concurrent_episodes"]
    assert float(trigger["metadata"]["targetValue"]) == episodes


def test_the_files_that_a_kustomization_names_exist_and_all_files_are_named() -> None:
    for folder in (BASE, GATEWAY, VLLM, *OVERLAYS):
        listed = yaml.safe_load((folder / "kustomization.yaml").read_text())
        names = [
            *listed.get("resources", []),
            *(patch["path"] for patch in listed.get("patches", []) if "path" in patch),
        ]
        names += [name for made in listed.get("configMapGenerator", []) for name in made["files"]]
        assert all((folder / name / "kustomization.yaml").is_file() for name in listed.get("components", []))
        assert all((folder / name).exists() for name in names), folder
        assert {path.name for path in folder.iterdir()} - {"kustomization.yaml"} <= set(names), folder


def own_overlay(tmp_path: Path, content: str) -> Path:
    """A user's overlay in a copy of the manifests."""
    shutil.copytree(K8S, tmp_path / "k8s")
    overlay = tmp_path / "k8s" / "overlays" / "mine"
    overlay.mkdir()
    head = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
    (overlay / "kustomization.yaml").write_text(head + content)
    return overlay


def test_gateways_play_instead_of_samplers_or_next_to_them(tmp_path: Path) -> None:
    instead = {name: pod for name, pod in pods(built(K8S / "overlays" / "agents"))}
    assert "gateway" in instead
    assert "sampler" not in instead
    (settings,) = [volume for volume in instead["gateway"]["volumes"] if volume["name"] == "run"]
    assert settings["configMap"]["name"].startswith("run-"), "the generated one, so that a new file restarts its pods"
    assert instead["gateway"]["containers"][0]["image"].startswith("tandem/sampler:")
    overlay = own_overlay(tmp_path, "resources: [../cpu]\ncomponents: [../../components/gateway]\n")
    assert {"gateway", "sampler"} <= {name for name, _ in pods(built(overlay))}


def test_vllm_takes_the_place_of_sglang_and_of_nothing_else(tmp_path: Path) -> None:
    """Probes, resources, key, volumes and rights stay; also in an overlay with another component, and with another registry."""
    with_sglang, with_vllm = (dict(pods(built(K8S / "overlays" / name))) for name in ("gpu", "vllm"))
    one, other = with_sglang["engine"]["containers"][0], with_vllm["engine"]["containers"][0]
    assert (one.pop("image").split(":")[0], other.pop("image").split(":")[0]) == ("lmsysorg/sglang", "tandem/vllm")
    assert one.pop("command") == ["python3", "-m", "sglang.launch_server"]
    assert other.pop("command") == ["python3", "-m", "sampler.engine.vllm"]
    assert with_sglang == with_vllm
    overlay = own_overlay(
        tmp_path,
        "resources: [../agents]\ncomponents: [../../components/vllm]\n"
        "images: [{name: tandem/vllm, newName: registry.example/vllm, newTag: mine}]\n",
    )
    mine = dict(pods(built(overlay)))
    assert "gateway" in mine
    assert mine["engine"]["containers"][0]["image"] == "registry.example/vllm:mine"
    assert mine["engine"]["containers"][1]["image"].startswith("tandem/sampler:")


def test_an_engine_starts_as_version_0_which_its_keeper_need_not_load_again(manifests: list[Manifest]) -> None:
    line = words(dict(pods(manifests))["engine"]["containers"][0])
    assert line[line.index("--weight-version") + 1] == "0"


def test_own_modules_come_from_an_overlays_files(tmp_path: Path) -> None:
    """docs/run/cluster.md: a generated ConfigMap `code` is what samplers and trainers import; without one they start too."""
    for name, pod in pods(of_base()):
        if name in ("sampler", "trainer"):
            assert {"name": "code", "configMap": {"name": "code", "optional": True}} in pod["volumes"]
            assert {"name": "code", "mountPath": "/code", "readOnly": True} in pod["containers"][0]["volumeMounts"]
    shutil.copytree(K8S, tmp_path / "k8s")
    overlay = tmp_path / "k8s" / "overlays" / "mine"
    overlay.mkdir()
    (overlay / "my_scorers.py").write_text("VALUE = 1\n")
    (overlay / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: tandem\n"
        "resources: [../gpu]\nconfigMapGenerator:\n  - {name: code, files: [my_scorers.py]}\n"
    )
    manifests = built(overlay)
    (made,) = [m for m in manifests if m["kind"] == "ConfigMap" and m["metadata"]["name"].startswith("code-")]
    assert made["data"] == {"my_scorers.py": "VALUE = 1\n"}
    for name, pod in pods(manifests):
        if name in ("sampler", "trainer"):
            (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "code"]
            assert volume["configMap"]["name"] == made["metadata"]["name"], name
