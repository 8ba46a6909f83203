"""Rules of episodes of several actors. Guide: docs/bring/actors.md. They are settings of the sampler, and belong to the run."""

from typing import Self

from pydantic import Field, model_validator

from shared.configuration.sections import Section
from shared.documents.actors import Actor, ActorName
from shared.rules.rounds import check_rounds


class ActorsConfig(Section):
    """Settings of the samplers `rounds` and `parallel`, and of your own on `ActorSampler`."""

    actors: dict[ActorName, Actor] = Field(
        {},
        description='Who takes part in episodes, by name: {"Bob": {"policy": "main", "system": "…"}, "Rival": {"policy": "main", '
        '"at": 40}, "Old": {"policy": "main", "at": "frozen"}, "Critic": {"model": "judge-api"}}. Only an actor without at is '
        "trained. A task's own actors win. See docs/bring/actors.md.",
    )
    rounds: str | None = Field(
        None, description='Who speaks when: "A -> B -> (C/D)*2 -> *". None: every seat once. Tasks may have their own.'
    )
    lineups: list[dict[ActorName, ActorName]] = Field(
        [],
        description='Who takes which seat: slot k of a group plays lineup k modulo their number, [{"X": "Bob", "O": "Rival"}, '
        '{"X": "Rival", "O": "Bob"}]. Empty: every actor takes a seat of its own name.',
    )
    name_speakers: bool = Field(False, description='Put "NAME says: " in front of what an actor hears of others.')

    @model_validator(mode="after")
    def lineups_seat_known_actors(self) -> Self:
        for number, lineup in enumerate(self.lineups):
            unknown = [actor for actor in lineup.values() if actor not in self.actors]
            if unknown:
                raise ValueError(
                    f"lineups[{number}] seats {unknown[0]!r}; expected one of actors: {', '.join(self.actors) or 'none'}"
                )
        return self

    @model_validator(mode="after")
    def rounds_are_of_the_seats(self) -> Self:
        if self.rounds is not None and self.actors:
            for seats in self.lineups or [dict.fromkeys(self.actors, "")]:
                check_rounds(self.rounds, list(seats))
        elif self.rounds is not None:
            check_rounds(self.rounds)
        return self
