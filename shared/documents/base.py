"""The base class of all documents of a run's database."""

from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from shared.errors import MalformedDocument

SCHEMA_VERSION = 4


class Document(BaseModel):
    """Base of all: frozen, unknown fields are an error, `id` is `_id` in MongoDB."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)
    collection: ClassVar[str] = "documents"  # where it is stored

    def to_mongo(self) -> dict[str, Any]:
        return self.model_dump(by_alias=True, mode="python")

    @classmethod
    def from_mongo(cls, document: dict[str, Any]) -> Self:
        """Raises MalformedDocument, which names the first wrong field."""
        try:
            return cls.model_validate(document)
        except ValidationError as exc:
            first = exc.errors(include_url=False, include_input=False)[0]
            field = ".".join(map(str, first["loc"])) or "the whole"
            raise MalformedDocument(
                cls.collection, str(document.get("_id"))[:200], f"{field[:200]}: {first['msg'][:200]}"
            ) from exc
