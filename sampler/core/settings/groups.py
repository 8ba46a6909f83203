"""The sampler's settings of completed groups: the rules of `shared.rules.groups`, and where this process finds estimators."""

from typing import ClassVar

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from shared.rules.groups import ESTIMATORS, Advantage, GigpoMode, GroupConfig

__all__ = ["ESTIMATORS", "Advantage", "GigpoMode", "GroupConfig", "GroupSettings"]


class AdvantageModules(BaseModel):
    """Code is never read from the database: each process names its own."""

    help_section: ClassVar[str] = "group"

    advantage_modules: list[str] = Field(
        [], description="Modules to import; they register advantage estimators (docs/reference/api.md)."
    )

    @field_validator("advantage_modules")
    @classmethod
    def modules_can_be_imported(cls, modules: list[str]) -> list[str]:
        ESTIMATORS.import_modules(modules)
        return modules


class GroupSettings(GroupConfig, AdvantageModules):
    """Fields of the sampler's configuration. What is not given is read from the run's rules."""

    @field_validator("advantage")
    @classmethod
    def an_estimator_is_registered(cls, name: str, given: ValidationInfo) -> str:
        if "advantage_modules" in given.data:  # else they are refused, which says enough
            ESTIMATORS.require(name, list(Advantage))
        return name
