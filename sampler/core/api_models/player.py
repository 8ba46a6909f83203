"""An API model that takes a seat in episodes (docs/bring/actors.md): its turns are recorded and never trained."""

from collections.abc import Sequence

from sampler.core.api_models.config import AgentConfig
from sampler.core.api_models.endpoint import Message
from sampler.core.api_models.images import ReadImage
from sampler.core.api_models.pool import Answer, ModelPool


class Player:
    """`name`: among `players` of the agent config file. `read_image`: as of `ModelPool`."""

    def __init__(self, name: str, config: AgentConfig, read_image: ReadImage | None = None) -> None:
        self._pool = ModelPool(f"player {name}", config, read_image)

    async def reply(self, messages: Sequence[Message]) -> Answer[str]:
        """The first usable reply of its models, with which of them gave it. Raises AgentFailed."""
        return await self._pool.ask(messages, str)

    async def close(self) -> None:
        await self._pool.close()
