"""A group scorer for tests of kills: it takes its time, says something else every time, and is down now and then."""

import asyncio
import random

from sampler.scorers import GroupRequest, Score, register_group_scorer


@register_group_scorer("moody")
async def moody(request: GroupRequest) -> list[Score]:
    await asyncio.sleep(random.uniform(0.2, 0.8))  # a judge's time, in which the test kills
    if random.random() < 0.1:
        raise ConnectionError("the judge is down")
    return [Score(random.random(), {"reason": "a mood"}) for _ in request.episodes]
