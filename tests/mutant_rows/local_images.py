"""Protections of images in the local engine."""

from tests.mutant_rows.mutant import Mutant

PICTURES = "tests/sampler/engine/local/test_pictures.py"
VISION = "tests/sampler/engine/local/test_vision.py"

MUTANTS = (
    Mutant(
        "local images: another image of the same size shares no prefix",
        "sampler/engine/local/prompt_images.py",
        "np.array([image.number for image in self.images], dtype=np.int32)[self.image_P]",
        "-1",
        f"{PICTURES}::test_a_picture_of_the_same_size_shares_no_prefix_and_the_same_one_does",
    ),
    Mutant(
        "local images: new weights compute features again",
        "sampler/engine/local/batching.py",
        "            self._vision.forget()\n",
        "            pass\n",
        f"{PICTURES}::test_new_weights_of_the_tower_count_for_pictures_that_were_read_before",
    ),
    Mutant(
        "local images: features are cached for a version",
        "sampler/engine/local/vision.py",
        "levels = self._cached.get(image.sha256)",
        "levels = None",
        f"{VISION}::test_an_image_is_computed_once_for_each_version_of_the_weights",
    ),
    Mutant(
        "local images: what follows an image counts on from its grid, in decode too",
        "sampler/engine/local/batch.py",
        "        if any(shifts):\n",
        "        if False:\n",
        f"{VISION}::test_an_image_is_computed_once_for_each_version_of_the_weights",
    ),
    Mutant(
        "local images: features are put in by place, not by id",
        "sampler/engine/local/prompt_images.py",
        "first, last = np.searchsorted(self.token_P, (start, stop))",
        "first, last = 0, len(self.token_P)",
        f"{VISION}::test_an_image_of_a_cached_prefix_is_not_computed_again",
    ),
    Mutant(
        "local images: as many images as image tokens",
        "sampler/engine/local/image_reader.py",
        "if tokens != num_images:",
        "if False:",
        f"{PICTURES}::test_what_is_no_image_and_images_without_a_token_are_a_400",
    ),
    Mutant(
        "local images: an image that cannot be read again ends its request alone",
        "sampler/engine/local/batching.py",
        "except (DataError, ConfigError, TimeoutError, MemoryError) as error:",
        "except (DataError, ConfigError) as error:",
        f"{VISION}::test_an_image_that_cannot_be_read_again_ends_its_request_alone",
    ),
    Mutant(
        "local images: a model is compared with transformers on an image before it serves",
        "sampler/engine/local/runner.py",
        "image_difference(model, forward, kv, family))",
        "0.0)",
        f"{VISION}::test_a_model_whose_positions_are_computed_otherwise_is_refused_at_start",
    ),
)
