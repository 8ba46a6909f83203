"""No setting is without effect in silence."""

from pydantic import BaseModel


def require_effect(settings: BaseModel, has_effect: bool, needed: str, *names: str) -> None:
    """Raises ValueError for the first of the settings that differs from its default, where nothing would read it.

    `needed`: what gives it an effect, as in "advantage = gigpo".
    """
    for name in () if has_effect else names:
        if getattr(settings, name) != type(settings).model_fields[name].get_default(call_default_factory=True):
            raise ValueError(f"{name} has no effect without {needed}; set that too, or leave it out")
