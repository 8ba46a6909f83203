"""What all documents of a run's database have in common."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = 2


class Document(BaseModel):
    """Base of all: frozen, unknown fields are an error, `id` is `_id` in MongoDB."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    def to_mongo(self) -> dict[str, Any]:
        return self.model_dump(by_alias=True, mode="python")

    @classmethod
    def from_mongo(cls, document: dict[str, Any]) -> Self:
        return cls.model_validate(document)
