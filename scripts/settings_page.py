"""docs/reference/settings.md, written from the settings' own models: name, type, default, range, meaning, by service and section.

python -m scripts.settings_page             write it
python -m scripts.settings_page --check     exit with 1 where it is out of date
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic.fields import FieldInfo

from sampler.engine.keeper.config import KeeperConfig
from sampler.environments.config import EnvironmentsConfig
from sampler.mcp_docker.config import McpDockerConfig
from sampler.settings import SamplerConfig
from shared.configuration.help_text import kind_text, value_text
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

`--help` of a service has what most people set, `--help SECTION` the rest of a section, `--help all` everything.
Each setting is a flag of its service (`--learning_rate`), a variable (`TANDEM_TRAINER_LEARNING_RATE`) and a key of the service's
part of the YAML file (`trainer: {learning_rate: 1.0e-6}`); flags win over variables, these over the file. With its section it is
`--optimizer.learning_rate`, `TANDEM_TRAINER_OPTIMIZER__LEARNING_RATE` and `trainer: {optimizer: {learning_rate: 1.0e-6}}`, and
means the same. `_s` is seconds. A value means what it looks like, wherever it is given: numbers are decimal (not `yes`, `010`,
`1:30`), text is as written, `none` is no value where the type has none, `~` is the home folder of paths, lists are JSON, YAML or
separated by commas, and what is empty is not given. An optional section is off until its required setting is given.

The sampler's sections, for example: `sampler: {budget: {max_turns: 16}, group: {advantage: zscore}}` or, the same,
`sampler: {max_turns: 16, advantage: zscore}`. Some settings of the sampler are rules: they belong to the run, are compared at
every start, and are changed by `tandem rules RUN --set` alone ([rules](../train/rules.md) lists them).
"""


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
    default = "required" if field.is_required() else f"`{value_text(field.get_default(call_default_factory=True))}`"
    return f"| `{name}` | {_text(kind_text(field))} | {_text(default)} | {_text(field.description or '')} |"


def _text(text: str) -> str:
    """On one line, as a cell of a table may hold it, with a link for the path of a page."""
    line = " ".join(text.split()).replace("|", "\\|")
    return re.sub(r"`?docs/(\w+)/(\w+)\.md`?", r"[\2](../\1/\2.md)", line)


def main() -> None:
    parser = argparse.ArgumentParser(description="docs/reference/settings.md from the settings' models")
    parser.add_argument("--check", action="store_true", help="exit with 1 where it is out of date, and write nothing")
    expected = page()
    if not parser.parse_args().check:
        write_text_whole(PAGE, expected, public=True)
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != expected:
        sys.exit(f"{PAGE} is out of date: python -m scripts.settings_page writes it")


if __name__ == "__main__":
    main()
