"""`python -m tests.sampler.settlement_table`: every rule and estimator of settlement against its reference, on random groups."""

import random
import sys

from rich.console import Console
from rich.table import Table

from sampler.core.settlement.shares import decide
from tests.sampler.settlement_cases import ESTIMATORS, RULES, disagreement, make_config, random_group

GROUPS = 400
TOLERANCE = 1e-9


def main() -> int:
    table = Table(title=f"settlement of {GROUPS} random groups, and their settlement by the formulas")
    for name in ("case", "groups refused", "episodes dropped", "advantages", "max |difference|"):
        table.add_column(name, justify="left" if name == "case" else "right")
    worst = 0.0
    for name, fields in (ESTIMATORS | RULES).items():
        config, rng = make_config(fields), random.Random(name)
        refused = dropped = advantages = 0
        difference = 0.0
        for _ in range(GROUPS):
            group, num_generations = random_group(rng)
            difference = max(difference, disagreement(group, num_generations, config))
            settlement = decide(group, num_generations, config.group)
            refused += settlement.verdict.refusal is not None
            dropped += len(settlement.verdict.dropped)
            advantages += sum(map(len, settlement.advantages.values()))
        worst = max(worst, difference)
        table.add_row(name, str(refused), str(dropped), str(advantages), f"{difference:.1e}")
    Console(width=100).print(table)
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
