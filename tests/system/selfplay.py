"""Self-play against an older version, as `--sampler tests.system.selfplay:Match` brings it. Each seat has scores of its own."""

from sampler import RoundsSampler, Score


class Match(RoundsSampler):
    """X wins in slots 0 and 1, O in slot 2, and slot 3 is drawn."""

    async def evaluate_record(self) -> Score:
        x = (1.0, 1.0, 0.0, 0.5)[self.claim.traj_id]
        return Score(x, actors={"X": x, "O": 1 - x})
