"""Protections of worlds that show images, and of models that judge or play by them."""

from tests.mutant_rows.mutant import Mutant

PIXELS = "tests/sampler/environments/test_pixels.py"
STEPS = "tests/sampler/environments/test_checked_step.py"
WORLDS = "tests/sampler/environments/test_image_worlds.py"
# Its tests need GAMES_PYTHON, or .games.
GYMNASIUM = "tests/sampler/environments/test_gymnasium_pixels.py"
ANSWERS = "tests/sampler/environments/test_client.py"
MODELS = "tests/sampler/agents/test_models_that_see.py"
JUDGES = "tests/sampler/test_judges_that_see.py"

MUTANTS = (
    Mutant(
        "image worlds: a worker needs no package",
        "sampler/environments/checked_step.py",
        "from shared.images.bounds import IMAGE_ROLES\n",
        "from shared.documents.content import references_of\nfrom shared.images.bounds import IMAGE_ROLES\n",
        "tests/sampler/environments/test_worker_pipe.py"
        "::test_a_worker_and_its_worlds_are_loaded_by_a_python_without_packages",
    ),
    Mutant(
        "image worlds: numbers beyond the bounds are no pixels",
        "sampler/environments/pixels.py",
        "not (array.min() >= least and array.max() <= most)",
        "False",
        f"{STEPS}::test_what_is_no_step_is_named_with_field_found_and_expected",
    ),
    Mutant(
        "image worlds: the pixels of a file are counted before it is read",
        "sampler/environments/pixels.py",
        "    _require_few(header.height, header.width)\n",
        "",
        f"{STEPS}::test_what_is_no_step_is_named_with_field_found_and_expected",
    ),
    Mutant(
        "image worlds: channels that come first are those of each pixel",
        "sampler/environments/pixels.py",
        "(array.transpose(1, 2, 0) if is_first else array).tobytes()",
        "array.tobytes()",
        f"{PIXELS}::test_pixels_are_those_of_the_array",
    ),
    Mutant(
        "image worlds: a smaller image has the means of the areas",
        "sampler/environments/pixels.py",
        "(array + 0.5).astype(np.uint8)",
        "array.astype(np.uint8)",
        f"{PIXELS}::test_a_smaller_image_has_the_means_of_the_areas",
    ),
    Mutant(
        "image worlds: images of a step are counted",
        "sampler/environments/checked_step.py",
        "    if len(lengths) > MAX_STEP_IMAGES:\n",
        "    if False:\n",
        f"{STEPS}::test_what_is_no_step_is_named_with_field_found_and_expected",
    ),
    Mutant(
        "image worlds: bytes of a step's images are bounded",
        "sampler/environments/checked_step.py",
        "    if sum(lengths) * 3 // 4 > MAX_STEP_IMAGE_BYTES:\n",
        "    if False:\n",
        f"{STEPS}::test_what_is_no_step_is_named_with_field_found_and_expected",
    ),
    Mutant(
        "image worlds: a foreign controller names no host",
        "sampler/environments/answers.py",
        "    if other is not None:\n",
        "    if False:\n",
        f"{ANSWERS}::test_images_of_a_foreign_controller_are_in_its_answer_few_and_in_messages_of_user_and_tools",
    ),
    Mutant(
        "image worlds: images of a foreign controller are counted",
        "sampler/environments/answers.py",
        "    if count > MAX_STEP_IMAGES:\n",
        "    if False:\n",
        f"{ANSWERS}::test_images_of_a_foreign_controller_are_in_its_answer_few_and_in_messages_of_user_and_tools",
    ),
    Mutant(
        "image worlds: a model of text is refused before an image is stored",
        "sampler/environments/step_images.py",
        "    if template is not None and template.images is None:\n",
        "    if False:\n",
        f"{WORLDS}::test_a_model_of_text_is_refused_with_a_sentence_and_stores_nothing",
    ),
    Mutant(
        "image worlds: an image that cannot be decoded fails once",
        "sampler/environments/step_images.py",
        "raise EnvironmentWrong(",
        "raise ValueError(",
        f"{WORLDS}::test_an_image_that_cannot_be_decoded_fails_the_episode_once",
    ),
    Mutant(
        "image worlds: a service remembers no image",
        "sampler/environments/sessions.py",
        "[_without_images(message) for message in step",
        "[message for message in step",
        f"{GYMNASIUM}::test_a_renewal_is_answered_without_images",
    ),
    Mutant(
        "image worlds: codes of a board are no image",
        "sampler/environments/adapters/shown.py",
        "return bool(low == 0 and high == 255)",
        "return True",
        "tests/sampler/environments/test_gymnasium.py::test_what_a_world_lacks_is_refused_with_a_sentence",
    ),
    Mutant(
        "image worlds: a small grid stays text",
        "sampler/environments/adapters/shown.py",
        "or num_values(space) < least:",
        "or False:",
        "tests/sampler/environments/test_gymnasium.py"
        "::test_a_world_that_a_module_registers_is_played_by_module_and_id_and_its_observations_are_json",
    ),
    Mutant(
        "models that see: only those that are declared",
        "sampler/core/api_models/pool.py",
        "if self._read_image is None or not member.endpoint.config.supports_vision:",
        "if self._read_image is None:",
        f"{MODELS}::test_no_model_sees_unless_it_is_declared",
    ),
    Mutant(
        "models that see: images of a request are bounded",
        "sampler/core/api_models/images.py",
        "        if remaining < 0 or len(urls) == MOST_SENT:\n",
        "        if False:\n",
        f"{MODELS}::test_the_newest_images_are_sent_as_many_as_fit",
    ),
    Mutant(
        "models that see: an image that is gone is no answer",
        "sampler/core/api_models/pool.py",
        "        except DataError as exc:\n            raise AgentFailed(",
        "        except DataError as exc:\n            return messages\n            raise AgentFailed(",
        f"{MODELS}::test_an_image_that_is_not_in_the_store_is_a_failure_and_no_answer",
    ),
    Mutant(
        "models that see: a judge sees what the model saw",
        "sampler/bundled_scorers/judged.py",
        "    seen = later_images(request.payload, request.messages)\n",
        "    seen = ()\n",
        f"{JUDGES}::test_a_judge_sees_the_question_and_what_the_model_saw_each_image_once",
    ),
)
