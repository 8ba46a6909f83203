"""docs/reference/settings.md, written from the settings' own models: name, type, default, range, meaning, by service and section.

python -m scripts.settings_page             write it
python -m scripts.settings_page --check     exit with 1 where it is out of date
"""

import argparse
import enum
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from sampler.engine.keeper.config import KeeperConfig
from sampler.environments.config import EnvironmentsConfig
from sampler.mcp_docker.config import McpDockerConfig
from sampler.settings import SamplerConfig
from shared.configuration.loading import ServiceConfig
from shared.configuration.sections import Section, Setting, sections_of, settings_of
from shared.files.written_file import write_text_whole
from shared.tasks.mix import TasksConfig
from tandem.launch.settings import LaunchConfig
from tandem.what_if.verify import VerifyConfig
from trainer.export import ExportConfig
from trainer.settings.config import TrainerConfig
from trainer.sft.config import SftConfig

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "settings.md"
SERVICES: tuple[type[ServiceConfig], ...] = (
    *(TrainerConfig, SftConfig, SamplerConfig, KeeperConfig, LaunchConfig, VerifyConfig, ExportConfig, TasksConfig),
    McpDockerConfig,
    EnvironmentsConfig,
)
TOP = """# Settings

Every setting of every service: type, default, range and meaning. The page is written from the code; a test fails when it
is out of date.

```bash
python -m scripts.settings_page       # writes this page
```

Each setting is a flag of its service (`--learning_rate`), a variable (`TANDEM_TRAINER_LEARNING_RATE`) and a key of the service's
part of the YAML file (`trainer: {learning_rate: 1.0e-6}`); flags win over variables, these over the file. With its section it is
`--optimizer.learning_rate`, `TANDEM_TRAINER_OPTIMIZER__LEARNING_RATE` and `trainer: {optimizer: {learning_rate: 1.0e-6}}`, and
means the same. `_s` is seconds. A value means what it looks like, wherever it is given: numbers are decimal (not `yes`, `010`,
`1:30`), text is as written, `none` is no value where the type has none, `~` is the home folder of paths, lists are JSON, YAML or
separated by commas, and what is empty is not given. An optional section is off until its required setting is given.
"""
SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤", "min_length": "length ≥", "max_length": "length ≤"}
LONGEST_DEFAULT = 60


def page() -> str:
    parts = [TOP, *(part for service in SERVICES for part in _service(service))]
    return "\n".join(parts)


def _service(service: type[ServiceConfig]) -> Iterator[str]:
    yield f"## {service.section}\n\n{_text(service.__doc__ or '')}"
    places: dict[tuple[str, ...], list[tuple[str, Setting]]] = {}
    for name, setting in settings_of(service).items():
        places.setdefault(setting.path[:-1], []).append((name, setting))
    for place, settings in sorted(places.items(), key=lambda item: bool(item[0])):
        if place:
            kind = _section(service, place)
            off = " Optional." if kind.switch else ""
            yield f"\n### {service.section}: {'.'.join(place)}\n\n{_text(kind.__doc__ or '')}{off}"
        yield "\n| setting | type | default | meaning |\n|---|---|---|---|"
        yield from (_row(name, setting.field) for name, setting in settings)
    yield ""


def _section(service: type[ServiceConfig], place: tuple[str, ...]) -> type[Section]:
    kind = sections_of(service)[place[0]]
    for name in place[1:]:
        kind = sections_of(kind)[name]
    return kind


def _row(name: str, field: FieldInfo) -> str:
    bounds = [
        f"{sign} {getattr(part, key):g}"
        for part in field.metadata
        for key, sign in SIGNS.items()
        if getattr(part, key, None) is not None
    ]
    kind = ", ".join([_type(field.annotation), *bounds])
    default = "required" if field.is_required() else f"`{_plain(field.get_default(call_default_factory=True))}`"
    return f"| `{name}` | {_text(kind)} | {_text(default)} | {_text(field.description or '')} |"


def _type(kind: Any) -> str:
    """In words of the YAML file."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(_type(part) for part in inside)
    if origin is Literal:
        return ", ".join(sorted(map(str, inside)))  # typing keeps equal ones once, in the order of the first
    if origin in (list, tuple, dict):
        return f"{'mapping' if origin is dict else 'list'} of {_type(inside[-1] if origin is dict else inside[0])}"
    if origin is not None:  # Annotated
        return _type(inside[0])
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return ", ".join(str(member.value) for member in kind)
    names = {str: "text", Path: "path", bool: "true or false", int: "integer", float: "number", type(None): "none"}
    return names.get(kind, getattr(kind, "__name__", str(kind)))


def _plain(value: Any) -> str:
    said = {None: "none", True: "true", False: "false"}.get(value) if value is None or isinstance(value, bool) else None
    text = said or (f"{value:g}" if isinstance(value, float) else str(value))
    return text if len(text) <= LONGEST_DEFAULT else f"{text[:LONGEST_DEFAULT]}…"


def _text(text: str) -> str:
    """On one line, as a cell of a table may hold it, with a link for the path of a page."""
    line = " ".join(text.split()).replace("|", "\\|")
    return re.sub(r"`?docs/(\w+)/(\w+)\.md`?", r"[\2](../\1/\2.md)", line)


def main() -> None:
    parser = argparse.ArgumentParser(description="docs/reference/settings.md from the settings' models")
    parser.add_argument("--check", action="store_true", help="exit with 1 where it is out of date, and write nothing")
    wanted = page()
    if not parser.parse_args().check:
        write_text_whole(PAGE, wanted, public=True)
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != wanted:
        sys.exit(f"{PAGE} is out of date: python -m scripts.settings_page writes it")


if __name__ == "__main__":
    main()
