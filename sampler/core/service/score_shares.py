"""What share of the scored episodes can teach nothing, from the first dozen on: settings that cannot work are seen in minutes.

no_answer      no answer in the reply, and a score of 0   no_tool_call   none was called, where tools exist
cut            a reply reached max_new_tokens                 equal_groups   all scores of the group are equal

Each share is a statistic of the heartbeat; one that is too large is an alarm, with what to do, until it is small again.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from sampler.core.episode.sampler import AsyncSampler
from sampler.core.settings.core_config import CoreConfig
from shared.documents import Task
from shared.names import FORK_SPLIT, TRAIN_SPLIT

FIRST = 12  # episodes; fewer say nothing
FIRST_GROUPS = 4
WINDOW = 96
LIMITS = {"no_answer": 0.5, "cut": 0.5, "no_tool_call": 0.9, "equal_groups": 0.8}  # many tasks need no tool
EQUAL_WITHIN = 1e-6
ADVICE = {
    "no_answer": "episodes score 0, and their reply has no answer in the task's form: say the form in answer_instruction or in "
    "the tasks, take a scorer that reads the whole reply, or train the form first (`python -m trainer.sft`)",
    "cut": "episodes have a reply that was cut at max_new_tokens={max_new_tokens}: raise it (and max_tokens), or tell the model "
    "to be brief",
    "no_tool_call": "episodes called no tool, although there are some: `tandem show RUN --tools` prints what the model read of "
    "them; name them in the tasks, offer fewer, or check tool_call_parser",
    "equal_groups": "groups have the same score in every episode and teach nothing: take tasks that the model solves at times, "
    "more num_generations, a scorer with steps between 0 and 1, or dynamic sampling (the trainer's max_resampled_groups)",
}


@dataclass(frozen=True, slots=True)
class Scored:
    """Of one episode; None: it cannot be said."""

    no_answer: bool | None
    cut: bool
    no_tool_call: bool | None


class ScoreShares:
    def __init__(self, config: CoreConfig) -> None:
        self._config = config
        self._episodes: deque[Scored] = deque(maxlen=WINDOW)
        self._equal: deque[bool] = deque(maxlen=WINDOW)

    def scored(self, sampler: AsyncSampler, reward: float) -> None:
        """An episode was scored; forks are of chosen turns, and say nothing."""
        if sampler.task.split == FORK_SPLIT:
            return
        episode = sampler.episode
        self._episodes.append(
            Scored(
                no_answer=episode.answer is None and reward <= 0 if episode.seeks_answer else None,
                cut=episode.cut_replies > 0,
                no_tool_call=not episode.calls_tools if episode.offers_tools else None,
            )
        )

    def settled(self, task: Task) -> None:
        scores = [slot.score for slot in task.slots if slot.score is not None]
        if task.split == TRAIN_SPLIT and len(scores) > 1:
            self._equal.append(max(scores) - min(scores) <= EQUAL_WITHIN)

    def stats(self) -> dict[str, float]:
        """{name: share}, of what a dozen episodes say something of."""
        columns: dict[str, tuple[Sequence[bool], int]] = {
            "no_answer": ([e.no_answer for e in self._episodes if e.no_answer is not None], FIRST),
            "cut": ([e.cut for e in self._episodes], FIRST),
            "no_tool_call": ([e.no_tool_call for e in self._episodes if e.no_tool_call is not None], FIRST),
            "equal_groups": (self._equal, FIRST_GROUPS),
        }
        return {
            name: round(sum(values) / len(values), 3)
            for name, (values, least) in columns.items()
            if len(values) >= least
        }

    def alarms(self) -> list[str]:
        shares, numbers = self.stats(), {"equal_groups": len(self._equal)}
        return [
            f"{shares[name]:.0%} of the last {numbers.get(name, len(self._episodes))} scored "
            + text.format(max_new_tokens=self._config.budget.max_new_tokens)
            for name, text in ADVICE.items()
            if shares.get(name, 0.0) >= LIMITS[name]
        ]
