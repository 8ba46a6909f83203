"""The chat template of a policy's requests, as the settings choose it: the model's own or a file's, with tools in its prompts."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sampler.core.rendering.template import ChatTemplate, template_text, text_digest
from sampler.core.rendering.tool_prompt import completed, shows_tools
from sampler.core.rendering.turn_format import turn_format
from shared.configuration.typed_values import home_path
from shared.errors import ConfigError
from shared.files.text_file import read_text_file

log = logging.getLogger(__name__)


class TemplateChoice(NamedTuple):
    """Settings. `chat_template`: auto, none or a file; `parser`: of tool calls, by name."""

    chat_template: str
    parser: str
    variables: Mapping[str, Any]


def digest_of_chosen(model: Path, chat_template: str) -> str:
    """Of the template's text as it is stored, of the model or of the file. Raises ConfigError."""
    own = chat_template in ("auto", "none")
    return text_digest(template_text(model) if own else read_text_file(home_path(chat_template), "a chat template"))


def chosen_template(model: Path, choice: TemplateChoice) -> ChatTemplate:
    """Raises ConfigError for a template that cannot be used, and with none for one that shows no tools."""
    file = None if choice.chat_template in ("auto", "none") else home_path(choice.chat_template)
    text = None if file is None else read_text_file(file, "a chat template")
    where = model if file is None else file
    template = ChatTemplate.from_dir(model, choice.variables, text)
    try:
        turn_format(template)  # learned now, so that an unusable template stops the start
        if not shows_tools(template):
            template = _with_tools(template, where, choice)
    except ConfigError as exc:
        raise ConfigError(f"{where}: {exc}") from exc
    log.info("chat template of %s digest=%s", where, template.digest)
    return template


def _with_tools(template: ChatTemplate, where: Path, choice: TemplateChoice) -> ChatTemplate:
    if choice.chat_template == "none":
        raise ConfigError(
            "chat template: a prompt with tools does not have their names, so the model would never read of them, and "
            "chat_template is none; expected auto, which puts their schemas into the system message, or a file with a "
            "template that shows them"
        )
    extended = completed(template, choice.parser)
    log.warning(
        "the chat template of %s shows no tools: schemas and the call format of %s are put into the system message "
        "(chat_template: %s); `tandem show RUN RECORD --prompt` prints what the model reads",
        where,
        choice.parser,
        choice.chat_template,
    )
    return extended
