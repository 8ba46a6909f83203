"""Which settings of a service were given, in any section; the others have their defaults."""

from pydantic import BaseModel

from shared.configuration.sections import Section, sections_of


def given_settings(config: BaseModel) -> set[str]:
    """Names of settings. A section that is given and off counts as its switch."""
    given: set[str] = set()
    for name in config.model_fields_set:
        kind, value = sections_of(type(config)).get(name), getattr(config, name)
        if kind is None:
            given.add(name)
        elif isinstance(value, Section):
            given |= given_settings(value)
        elif kind.switch is not None:
            given.add(kind.switch[0])
    return given
