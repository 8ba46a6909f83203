"""Protections of images in agents' requests."""

from tests.mutant_rows.mutant import Mutant

REQUESTS = "tests/sampler/gateway/test_image_requests.py"
AGENTS = "tests/sampler/gateway/test_image_agents.py"
PARTS = "sampler/gateway/image_parts.py"
RECEIVED = "sampler/gateway/received_images.py"
REFUSED = f"{REQUESTS}::test_what_is_no_image_is_a_400_that_names_its_place_and_the_agent_goes_on"
LOOP = f"{REQUESTS}::test_a_loop_with_images_is_one_conversation_of_what_the_engine_read"

MUTANTS = (
    Mutant(
        "agents' images: no URL of a request is fetched",
        PARTS,
        "    if not is_data_url(url):\n",
        "    if False:\n",
        REFUSED,
    ),
    Mutant(
        "agents' images: ids of files are refused",
        PARTS,
        'if part.value("file_id"):',
        "if False:",
        REFUSED,
    ),
    Mutant(
        "agents' images: other inline data are refused",
        PARTS,
        'if not kind.lower().startswith("image/"):',
        "if False:",
        REFUSED,
    ),
    Mutant(
        "agents' images: the alphabet of URLs is base64, too",
        PARTS,
        '.replace("-", "+").replace("_", "/")',
        "",
        LOOP,
    ),
    Mutant(
        "agents' images: what is no image costs no attempt",
        RECEIVED,
        "    except DataError as exc:\n        raise GatewayError(Problem.INVALID, str(exc)) from exc\n",
        "",
        REFUSED,
    ),
    Mutant(
        "agents' images: instructions have none",
        "sampler/gateway/chat_request.py",
        "read = content_of if role in IMAGE_ROLES else text_of",
        "read = content_of",
        f"{REQUESTS}::test_instructions_and_replies_have_no_images",
    ),
    Mutant(
        "agents' images: a model of text is not shown any, and nothing is decoded for it",
        RECEIVED,
        "    if template.images is not None:\n        return\n",
        "    return\n",
        f"{REQUESTS}::test_a_model_of_text_refuses_an_image_before_it_is_decoded",
    ),
    Mutant(
        "agents' images: those of one request are bounded",
        RECEIVED,
        "if len(images) > MOST_PROMPT_IMAGES:",
        "if False:",
        f"{REQUESTS}::test_more_images_than_a_prompt_may_have_are_a_limit_of_the_episode",
    ),
    Mutant(
        "agents' images: too many are a limit of the episode",
        "sampler/gateway/exchange.py",
        "    @property\n    def is_limit(self) -> bool:\n        return True\n",
        "",
        f"{REQUESTS}::test_more_images_than_a_prompt_may_have_are_a_limit_of_the_episode",
    ),
    Mutant(
        "agents' images: conversations with other pictures differ",
        "sampler/gateway/matching.py",
        'block.get("sha256") or str(block.get("text", "")).strip()',
        'str(block.get("text", "")).strip()',
        f"{REQUESTS}::test_another_picture_in_the_history_is_another_conversation_and_the_same_one_is_not",
    ),
    Mutant(
        "agents' images: a request keeps references alone",
        "sampler/gateway/app.py",
        "await session.referenced(chat) if images_of(chat) else chat",
        "chat",
        f"{AGENTS}::test_fifty_screenshots_in_each_request_pass_and_their_body_is_freed_during_sampling",
    ),
    Mutant(
        "agents' images: a body has room for screenshots",
        "sampler/gateway/app.py",
        "most_body_bytes(most, sees=session.sees)",
        "most_body_bytes(most)",
        f"{AGENTS}::test_fifty_screenshots_in_each_request_pass_and_their_body_is_freed_during_sampling",
    ),
    Mutant(
        "agents' images: a key whose attempt has ended stores nothing",
        "sampler/gateway/attempt.py",
        "return await (await self._session()).referenced(request)",
        "from sampler.gateway.received_images import with_references\n\n"
        "        return await with_references(request, self._resources)",
        f"{AGENTS}::test_a_key_whose_attempt_has_ended_stores_no_images",
    ),
    Mutant(
        "agents' images: a machine that stalls is no fault of the request",
        RECEIVED,
        "raise RetryRequest(str(exc)) from exc",
        "raise GatewayError(Problem.INVALID, str(exc)) from exc",
        f"{AGENTS}::test_a_decoder_that_the_machine_stalls_is_no_fault_of_the_request",
    ),
    Mutant(
        "agents' images: those of tasks for a model of text are refused before the agent starts",
        "sampler/gateway/task_messages.py",
        "if references_in(messages) and template.require_images() is None:",
        "if False:",
        f"{AGENTS}::test_a_task_with_images_for_a_model_of_text_is_misconfigured",
    ),
)
