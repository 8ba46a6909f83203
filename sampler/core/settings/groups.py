"""The sampler's settings of completed groups: the rules of `shared.rules.groups`, and where this process finds estimators."""

from pydantic import Field, ValidationInfo, field_validator

from shared.configuration.sections import Section
from shared.rules.groups import ESTIMATORS, Advantage, GigpoMode, GroupConfig

__all__ = ["ESTIMATORS", "Advantage", "GigpoMode", "GroupConfig", "GroupSettings"]


class AdvantageModules(Section):
    """Code is never read from the database: each process names its own."""

    advantage_modules: list[str] = Field(
        [], description="Modules to import; they register advantage estimators (docs/reference/api.md)."
    )

    @field_validator("advantage_modules")
    @classmethod
    def modules_can_be_imported(cls, modules: list[str]) -> list[str]:
        ESTIMATORS.import_modules(modules)
        return modules


class GroupSettings(GroupConfig, AdvantageModules):
    """Which episodes of a completed group are trained on, and their advantages."""

    @field_validator("advantage")
    @classmethod
    def an_estimator_is_registered(cls, name: str, given: ValidationInfo) -> str:
        if "advantage_modules" in given.data:  # else they are refused, which says enough
            ESTIMATORS.require(name, list(Advantage))
        return name
