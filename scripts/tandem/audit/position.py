"""Up to where a run was examined: the file of `tandem audit RUN --since FILE`."""

from datetime import datetime
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from shared.documents.run import Run
from shared.errors import ConfigError
from shared.files.written_file import write_text_whole


class MarkPosition(BaseModel, frozen=True, extra="forbid"):
    """Of one policy: marks up to `step` were compared, when its trainer had started `starts` times."""

    step: int = -1
    starts: int = 0


class AuditPosition(BaseModel):
    """Groups settled up to `settled_at` were examined, and of those settled shortly before it `recent`, by id: a group may be
    seen after one that was settled later. `again`: groups that are examined once more, since they or others of their batch have
    violations. `created_at`: of the run, which may have been deleted and begun again under its name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    created_at: datetime | None
    settled_at: datetime
    recent: list[str]
    again: list[str] = []
    marks: dict[str, MarkPosition]  # by policy

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """None: there is no such file yet. Raises ConfigError."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as exc:
            raise ConfigError(
                f"{path}: found no position of an audit ({type(exc).__name__}); expected a file that `tandem audit RUN --since` "
                "wrote, or none: remove it to examine the whole run"
            ) from exc

    def write(self, path: Path) -> None:
        """Raises DataError."""
        write_text_whole(path, self.model_dump_json(indent=1) + "\n", public=True)

    def check(self, run: Run | None, name: str) -> None:
        """Raises ConfigError if it is another run's."""
        if self.run != name or run is None or self.created_at != run.created_at:
            raise ConfigError(
                f"the position is of run {self.run}, created {self.created_at}; expected run {name}, created "
                f"{run.created_at if run else None}: name another file, or remove it to examine the whole run"
            )
