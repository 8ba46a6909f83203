"""The import rule: shared knows neither service and no torch (but for MAY_IMPORT), the sampler not the trainer and torch only in
its local engine, the trainer not the sampler. `tandem` (scripts/tandem) is the roof: no service imports it, and of it only what
starts or asks services may import them. Checked in the source, and by importing where torch does not exist.
"""

import ast
import contextlib
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TORCH = {"torch", "transformers", "accelerate", "safetensors"}  # torch, and what is of use with it only
FORBIDDEN = {
    "shared": TORCH | {"sampler", "trainer", "scripts", "tandem"},
    "sampler": TORCH | {"trainer", "scripts", "tandem"},
    "trainer": {"sampler", "scripts", "tandem"},
    "scripts/tandem": TORCH | {"sampler", "trainer", "scripts"},
}
MAY_IMPORT = {  # folders and files with more freedom than their package
    "shared/images/families/model_class.py": TORCH,
    "shared/images/torch_resizing.py": TORCH,
    "sampler/engine/local/": TORCH,
    "sampler/engine/loading/": TORCH,
    "sampler/engine/vllm/": TORCH,
    "scripts/tandem/launch/": {"sampler", "trainer"},
    "scripts/tandem/plan/": {"sampler"} | TORCH,
    "scripts/tandem/what_if/": {"sampler", "trainer"} | TORCH,
}
WITH_TORCH = tuple(place for place in MAY_IMPORT if place.startswith(("sampler/", "shared/")))
SDK = {"mcp", "mcp_types", "httpx2"}  # of MCP: of shared/, shared/mcp/ alone imports it
ALONE = {"sampler/mcp_docker/": ("sampler.mcp_docker", "shared")}  # what it imports of ours
IMPORTERS = ("importlib.import_module", "import_module", "__import__")

IMPORT_WITHOUT_TORCH = """
import importlib, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in set(sys.argv[1].split(",")):
            raise ModuleNotFoundError(f"{name} is not there (refused by the test)", name=name)

sys.meta_path.insert(0, Refuse())
for module in sys.argv[2].split(","):
    importlib.import_module(module)
"""


def sources(package: str) -> list[Path]:
    found = sorted((ROOT / package).rglob("*.py"))
    assert found, f"no source in {package}/"
    return found


def module_name(path: Path) -> str:
    """What it is imported as."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__").removeprefix("scripts.")


def imported(tree: ast.AST, own: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """(absolute module name, line) of every import, those inside functions and by name included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = own[: len(own) - node.level] if node.level else ()
            yield ".".join([*base, *([node.module] if node.module else [])]), node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in IMPORTERS and node.args:
            name = node.args[0]
            yield str(name.value) if isinstance(name, ast.Constant) else ast.unparse(name), node.lineno


def violations(text: str, path: str) -> list[str]:
    """What the file `path` (relative to the root) imports against the rule."""
    own = Path(path).with_suffix("").parts
    package = next(package for package in FORBIDDEN if path.startswith(f"{package}/"))
    freed = set().union(*(names for folder, names in MAY_IMPORT.items() if path.startswith(folder)))
    refused = FORBIDDEN[package] - freed
    if package == "shared" and not path.startswith("shared/mcp/"):
        refused = refused | SDK
    allowed = next((names for folder, names in ALONE.items() if path.startswith(folder)), ("",))
    return [
        f"{path}:{line}: imports {name}; {package}/ may not"
        for name, line in imported(ast.parse(text), own)
        if name.partition(".")[0] in refused or (is_ours(name) and not name.startswith(allowed))
    ]


def is_ours(name: str) -> bool:
    return name.partition(".")[0] in FORBIDDEN


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_no_source_imports_against_the_rule(package: str) -> None:
    found = []
    for path in sources(package):
        relative = path.relative_to(ROOT).as_posix()
        found += violations(path.read_text(encoding="utf-8"), relative)
    assert found == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("import torch.nn", "shared/documents/packed.py"),
        ("def f():\n    from sampler.core.rendering.context import Context", "trainer/data/stream.py"),
        ("import trainer", "sampler/core/service/service.py"),
        ("import torch", "sampler/core/engines/pool/engine_pool.py"),
        ("import importlib\nimportlib.import_module('torch')", "sampler/core/service/service.py"),
        ("from ..trainer import loop", "sampler/engine.py"),
        ("from tandem.launch import curve", "shared/store/runs.py"),
        ("import mcp.client", "shared/http/asgi.py"),
        ("from sampler.core.tools import ToolSession", "sampler/mcp_docker/requests/endpoint.py"),
        ("from sampler.settings import SamplerConfig", "scripts/tandem/commands/status.py"),
    ],
)
def test_the_check_sees_every_way_to_break_the_rule(text: str, path: str) -> None:
    assert len(violations(text, path)) == 1


def test_torch_is_allowed_in_the_local_engine() -> None:
    assert violations("import torch", "sampler/engine/local/engine.py") == []


def test_shared_and_sampler_import_where_torch_and_the_trainer_do_not_exist() -> None:
    modules = []
    for package in ("shared", "sampler"):
        for path in sources(package):
            relative = path.relative_to(ROOT)
            if not relative.as_posix().startswith(WITH_TORCH):
                modules.append(module_name(path))
    imports_without(TORCH | {"trainer", "scripts", "tandem"}, modules)


def test_a_programs_settings_are_read_without_torch() -> None:
    """Importing torch takes seconds. `--help`, an error in the settings and the start of a launch do not need it."""
    settings = [module_name(path) for path in sources("trainer") if "settings" in path.parts]
    imports_without(TORCH, [*settings, "trainer.__main__", "trainer.sft.__main__", "tandem.launch.policies"])


def imports_without(refused: set[str], modules: list[str]) -> None:
    child = subprocess.run(
        [sys.executable, "-c", IMPORT_WITHOUT_TORCH, ",".join(sorted(refused)), ",".join(modules)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert child.returncode == 0, child.stderr


def test_no_file_imports_itself_by_way_of_others() -> None:
    """Imports for types alone count too: two files that know each other are one thing."""
    modules = {module_name(path): path for package in FORBIDDEN for path in sources(package)}
    imports = {
        module: {
            target
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and node.module
            for name in (f"{node.module}.{alias.name}" for alias in node.names)
            if (target := name if name in modules else node.module) in modules and target != module
        }
        for module, path in modules.items()
    }
    with contextlib.suppress(graphlib.CycleError):
        graphlib.TopologicalSorter({**imports, "shared.a": {"shared.b"}, "shared.b": {"shared.a"}}).prepare()
        pytest.fail("a circle was not seen")
    graphlib.TopologicalSorter(imports).prepare()


MCP_DOCKER = ("requests", "sessions", "starting", "links", "tools")  # from the top


def test_no_room_of_mcp_docker_imports_one_above_it() -> None:
    folder = ROOT / "sampler" / "mcp_docker"
    assert {path.parent.name for path in folder.glob("*/*.py")} == set(MCP_DOCKER)
    for number, room in enumerate(MCP_DOCKER):
        for path in (folder / room).glob("*.py"):
            for name, line in imported(ast.parse(path.read_text(encoding="utf-8")), ()):
                if name.startswith("sampler.mcp_docker."):
                    assert name.split(".")[2] in MCP_DOCKER[number:], f"{path}:{line}: imports {name}"
