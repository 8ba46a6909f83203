"""Plays a world of several players, each seat by an actor: `GameSampler`, the sampler `game` (docs/bring/environments.md).

    start ─▶ [ the seat that the world asks ─▶ its actor's reply ─▶ interact ]* ─▶ the rewards of all seats, or the turns' limit

Seat k of the world is the k-th seat of the lineup (docs/bring/actors.md): the newest weights, an older version, or an API model.
Each reads what the world tells it, and nothing else. A world that fails, or asks a seat that is not there, is no reward. A game
that the limit of turns or of a seat's context cuts is worth `cut_game_reward` to all: who loses must not gain by going
on for ever.
"""

from sampler.actors.actor_sampler import ActorSampler
from sampler.core.errors import EnvironmentFailed, MessagesRepeat
from sampler.core.rendering.reply_message import Message
from sampler.core.rendering.turn import Turn
from sampler.core.scorers import Score
from sampler.environments.answers import StepReply
from sampler.environments.choosing import Environments
from sampler.environments.sampler import EnvironmentTask, World, add_metrics, reply_as_written
from sampler.environments.session import EnvironmentSession
from sampler.environments.step_images import stored_images
from shared.documents.actors import model_of
from shared.documents.states import Termination

PLAYERS = "players"  # of custom_task: as many as the lineup has seats


class GameSampler(ActorSampler):
    """`rewards`: of each seat by its name; until the world has said them, those of a game that was cut."""

    async def run(self) -> Termination:
        task = self.own_payload(EnvironmentTask)
        self.world, self.rewards = (
            World(task.environment),
            dict.fromkeys(self.order(), self.config.environments.cut_game_reward),
        )
        custom = {PLAYERS: len(self.seats), **task.custom_task}
        async with self.resources.opened.of(Environments).session(task.environment, task.index, custom) as session:
            return await self._play(session)

    def order(self) -> list[str]:
        """Every seat once: the world says who moves when. `rounds` are not read."""
        self.require_actors(self.seats)
        return list(self.seats)

    async def _play(self, session: EnvironmentSession) -> Termination:
        step = session.opening
        for _ in range(self.task.payload.max_turns or self.config.budget.max_turns):
            seat = self._seat_of(step)
            try:
                turn = await self.answer(seat, (await self._seen(seat, step)).messages)
            except MessagesRepeat as exc:
                raise EnvironmentFailed(f"environment {self.world.kind}: its {exc}") from exc
            if turn is None:
                return Termination.LENGTH_LIMIT
            step = await session.interact([_move(turn)])
            self.world.last(step)
            add_metrics(self, step)
            if step.finish:
                self.rewards = self._earned(step)
                return step.termination
        return Termination.TURNS_LIMIT

    async def _seen(self, seat: str, step: StepReply) -> StepReply:
        """An API model's requests have its images, or a line for each, by its own settings."""
        label = self.seats[seat].label
        template = None if model_of(label) is not None else self.resources.policy_client(label).template
        return await stored_images(self.resources, template, self.world.kind, step)

    def _seat_of(self, step: StepReply) -> str:
        """Raises EnvironmentFailed."""
        seats = list(self.seats)
        if step.finish or step.seat is None or step.seat >= len(seats):
            answer = f"status {step.status!r}" if step.finish else f"seat {step.seat}"
            raise EnvironmentFailed(
                f"environment {self.world.kind} answered with {answer}; expected one of {len(seats)} seats, whose turn it is"
            )
        if step.restarts and seats[step.seat] in self._read_count:
            raise EnvironmentFailed(
                f"environment {self.world.kind} told seat {step.seat} its whole history anew; expected new messages alone in a "
                "world of several players"
            )
        return seats[step.seat]

    def _earned(self, step: StepReply) -> dict[str, float]:
        """Raises EnvironmentFailed where the end says nothing of a seat."""
        step.termination  # noqa: B018 - raises for an end that is none of the world
        missing = [name for number, name in enumerate(self.seats) if number not in step.rewards]
        if missing:
            raise EnvironmentFailed(f"environment {self.world.kind} ended without a reward of seat {missing[0]}")
        return {name: step.rewards[number] for number, name in enumerate(self.seats)}

    async def evaluate_record(self) -> Score:
        """Each seat's own reward. The episode's score: the mean of the seats that the task's own policy is trained in, and
        where there is none the first seat's."""
        own = [self.rewards[name] for name, seat in self.seats.items() if seat.label == self.task.policy]
        earned = own or [next(iter(self.rewards.values()))]
        details = self.world.details("mean of the trained seats")
        details["rewards"] = self.rewards
        return Score(sum(earned) / len(earned), details, actors=self.rewards)


def _move(turn: Turn) -> Message:
    """The reply as the protocol has it, without reasoning. One that was cut is sent as it is: what it is worth is the world's to
    say."""
    return {"role": "assistant", "content": reply_as_written(turn) or turn.answer_text or " "}
