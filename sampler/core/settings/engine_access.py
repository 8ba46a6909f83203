"""Authentication of a service to engines. The key comes from the environment, and is in no file and no document."""

import re
from typing import Self

from pydantic import Field, model_validator

from shared.configuration.secrets import configured_secret
from shared.configuration.sections import Section

NAME = re.compile(r"[A-Z_][A-Z0-9_]*")


class EngineAccess(Section):
    """Requests to engines."""

    engine_api_key_var: str | None = Field(
        None,
        description="Name of the environment variable with the API key of engines that require one (SGLang's --api-key). "
        "None: no key.",
    )

    @model_validator(mode="after")
    def the_key_is_in_the_environment(self) -> Self:
        name = self.engine_api_key_var
        if name is not None and not NAME.fullmatch(name):  # not shown: it may be the key
            raise ValueError(
                "engine_api_key_var is not a name of an environment variable; expected one like SGLANG_API_KEY"
            )
        if name is not None and not configured_secret(name):
            raise ValueError(
                f"engine_api_key_var: environment variable {name} is not set; expected the engines' key in it, or {name}_FILE"
            )
        return self

    @property
    def engine_api_key(self) -> str | None:
        return configured_secret(self.engine_api_key_var) if self.engine_api_key_var else None
