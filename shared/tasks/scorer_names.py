"""Names of the scorers known to this process, and whether each needs a judge. The functions are in the sampler.

Known scorers are those that come with the sampler and those that an imported module has registered.
"""

BUNDLED = {
    "agentcpm": True,
    "asearcher": True,
    "diversity": False,
    "exact_match": False,
    "f1": False,
    "includes": False,
    "json_schema": False,
    "judge_pairs": True,
    "judge_rank": True,
    "judge_rubric": True,
    "judge_score": True,
    "math": False,
    "squad_f1": False,
    "squad_match": False,
}
SCHEMA_KEY = "json_schema"  # in the metadata of tasks of this scorer
_REGISTERED: dict[str, bool] = {}


def remember(name: str, *, needs_judge: bool) -> None:
    _REGISTERED[name] = needs_judge


def needs_judge() -> dict[str, bool]:
    """{scorer: whether it needs a judge}."""
    return BUNDLED | _REGISTERED
