"""Images of records: from dispatches to the gradient."""

from tests.mutant_rows.mutant import Mutant

FLATTENED = "tests/shared/test_flatten_images.py"
READ = "tests/trainer/test_read_images.py"
SPOILT = f"{READ}::test_a_group_with_a_spoilt_image_is_dropped_by_name_and_the_step_takes_the_next"
READ_ONCE = f"{READ}::test_every_image_is_read_once_for_a_step_and_freed_after_it"
READING = "trainer/data/images.py"

MUTANTS = (
    Mutant(
        "record images: the digest of the training data has them",
        "shared/tokens/flatten.py",
        "    for image in tree.images:\n",
        "    for image in ():\n",
        f"{FLATTENED}::test_a_picture_changed_after_settlement_is_never_trained",
    ),
    Mutant(
        "record images: they lie in the prompt",
        "shared/tokens/flatten.py",
        "        _check_placed(dispatch.id, image, prompt)\n",
        "        pass\n",
        f"{FLATTENED}::test_images_that_are_not_in_the_prompt_whole_are_refused",
    ),
    Mutant(
        "record images: a tree that contradicts itself is an error of the data",
        "shared/tokens/flatten.py",
        "    except ValueError as exc:  # the dispatches contradict each other\n",
        "    except ZeroDivisionError as exc:\n",
        f"{FLATTENED}::test_images_that_are_not_in_the_prompt_whole_are_refused",
    ),
    Mutant(
        "record images: the store reads where they are",
        "shared/store/records.py",
        '"sampling_params", "prompt_ids", "images"),',
        '"sampling_params", "prompt_ids"),',
        f"{FLATTENED}::test_the_store_reads_what_the_tree_is_made_of",
    ),
    Mutant(
        "record images: their placeholders are as many as their size makes",
        READING,
        "(span.count, span.grid) != (image.count, image.grid)",
        "False",
        SPOILT,
    ),
    Mutant(
        "record images: they stand at placeholders",
        READING,
        "        if not is_placeholder_N[span.first]:\n",
        "        if False:\n",
        SPOILT,
    ),
    Mutant(
        "record images: a placeholder of the prompt has one",
        READING,
        "    if len(without):\n",
        "    if False:\n",
        SPOILT,
    ),
    Mutant(
        "record images: a model of text ends the trainer",
        "trainer/data/reading.py",
        "NOT_OF_THE_DATA = (*OF_THE_MACHINE, ConfigError)",
        "NOT_OF_THE_DATA = OF_THE_MACHINE",
        f"{READ}::test_images_and_a_model_of_text_end_the_trainer_with_a_sentence",
    ),
    Mutant(
        "record images: each is read once for a step",
        READING,
        "            self._held.update(images)\n",
        "            pass\n",
        READ_ONCE,
    ),
    Mutant(
        "record images: what no group and no row has is freed",
        READING,
        "WeakValueDictionary[str, TowerImage] = WeakValueDictionary()",
        "dict[str, TowerImage] = {}",
        READ_ONCE,
    ),
    Mutant(
        "record images: their arrays are bounded",
        READING,
        "images[digest] = image if array_bytes >= 0 else replace(image, held=data)",
        "images[digest] = image",
        f"{READ}::test_beyond_a_bound_images_are_held_as_files_and_give_the_same_pixels",
    ),
    Mutant(
        "record images: a sampled placeholder is a token",
        "trainer/modeling/vision.py",
        "        first_FD, *deep = self._with_sampled(levels, images.node_P, ids_N)\n",
        "        first_FD, *deep = levels\n",
        "tests/trainer/test_vision_exactness.py::test_a_placeholder_that_the_model_sampled_is_a_token_like_any_other",
    ),
    Mutant(
        "record images: kept features leave a device with the weights",
        "trainer/step/residence.py",
        "        module.free_features()\n",
        "        pass\n",
        "tests/trainer/test_vision_training.py::test_features_of_a_frozen_tower_are_cached_until_the_weights_leave_the_device",
    ),
)
