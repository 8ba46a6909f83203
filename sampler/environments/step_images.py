"""Images of a world's step: each is stored once, and the messages that the episode goes on with name it by its digest."""

from dataclasses import replace
from typing import Any

from sampler.core.episode.resources import Resources
from sampler.core.errors import EnvironmentWrong
from sampler.core.rendering.template import ChatTemplate
from sampler.environments.answers import StepReply
from shared.errors import ConfigError, DataError


async def stored_images(resources: Resources, template: ChatTemplate | None, kind: str, step: StepReply) -> StepReply:
    """The step with references; one without images is itself. `template`: of the model that reads it (None: an API model). Of a
    last step tools' answers alone, which the record has: no model reads the others, and their images are not stored.

    Raises ConfigError for a model of text, and EnvironmentWrong for an image that cannot be read.
    """
    read = [message for message in step.messages if message["role"] == "tool" or not step.finish]
    if not any(isinstance(message["content"], list) for message in read):
        return step
    if template is not None and template.images is None:
        raise ConfigError(
            f"environment {kind} shows images, and the model reads texts alone; expected a model that reads images, or "
            'custom_task that has the world shown as text, such as "show": "text" of Gymnasium\'s'
        )
    try:
        messages: list[dict[str, Any]] = await resources.images.referenced(read)
    except DataError as exc:
        raise EnvironmentWrong(f"environment {kind} shows an image that cannot be read: {exc}") from exc
    return replace(step, messages=messages)
