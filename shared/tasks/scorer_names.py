"""The scorers that this process knows by name, and whether each needs a judge. The functions are the sampler's.

Known are those that come with the sampler, and those that an imported module has registered.
"""

BUNDLED = {
    "agentcpm": True,
    "asearcher": True,
    "exact_match": False,
    "f1": False,
    "includes": False,
    "json_schema": False,
    "math": False,
}
_REGISTERED: dict[str, bool] = {}


def remember(name: str, *, needs_judge: bool) -> None:
    _REGISTERED[name] = needs_judge


def needs_judge() -> dict[str, bool]:
    """By name."""
    return BUNDLED | _REGISTERED
