"""What a step of a policy costs: episodes, tokens, and the speed of the engines, as the launcher measured it at the start."""

from shared.documents.base import Document

LONG_STEP_S = 600.0
CHEAPER = (
    "fewer num_generations or groups_per_step, a smaller max_new_tokens, a smaller model or a GPU make it shorter; "
    "`tandem plan`, with the options of this command, proposes settings for this machine"
)


class StepCost(Document):
    """`tokens_each`: that an episode may sample. `mean_tokens`: of the first dozen episodes that ended."""

    groups: int
    generations: int
    tokens_each: int
    tokens_per_s: float | None = None  # of all engines; None: not measured yet
    mean_tokens: float | None = None  # None: fewer than a dozen have ended

    @property
    def episodes(self) -> int:
        return self.groups * self.generations

    def size_text(self) -> str:
        return (
            f"a step is {self.groups} groups x {self.generations} = {self.episodes:,} episodes of at most {self.tokens_each:,} "
            f"sampled tokens: {self.episodes * self.tokens_each:,} tokens at worst"
        )

    def time_text(self) -> str | None:
        """None: the speed is not known yet."""
        if self.tokens_per_s is None:
            return None
        seconds = self.episodes * (self.mean_tokens or self.tokens_each) / self.tokens_per_s
        mean = f"{self.mean_tokens:,.0f} tokens an episode so far" if self.mean_tokens else "at worst"
        advice = f": {CHEAPER}" if seconds > LONG_STEP_S else ""
        speed = f"{self.tokens_per_s:,.0f}"
        return f"the engines sample {speed} tokens/s: about {spoken(seconds)} of sampling for a step, {mean}{advice}"


def spoken(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
