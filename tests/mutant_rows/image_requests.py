"""Protections of images in requests to engines."""

from tests.mutant_rows.mutant import Mutant

PROMPT = "tests/sampler/test_prompt_images.py"
REQUEST = "tests/sampler/engine/test_request_images.py"

MUTANTS = (
    Mutant(
        "images: other tokens than the stored ones are refused",
        "sampler/core/engines/client/prompt_images.py",
        "if read == list(input_ids):",
        "if True:",
        f"{PROMPT}::test_other_tokens_than_the_stored_ones_are_refused",
    ),
    Mutant(
        "images: an image token without an image is not sent",
        "sampler/core/engines/client/prompt_images.py",
        "    if spare:\n",
        "    if False:\n",
        f"{PROMPT}::test_spans_that_do_not_fit_the_prompt_are_refused",
    ),
    Mutant(
        "images: pixels are counted before they are decoded",
        "sampler/engine/vllm/pictures.py",
        "if image.width * image.height > MOST_PIXELS:",
        "if False:",
        f"{REQUEST}::test_what_cannot_be_opened_is_named",
    ),
    Mutant(
        "images: alpha is over white",
        "sampler/engine/vllm/pictures.py",
        "if image.has_transparency_data:",
        "if False:",
        f"{REQUEST}::test_alpha_is_over_white_palettes_and_grey_are_rgb",
    ),
    Mutant(
        "images: a file is bounded before it is decoded",
        "sampler/engine/api/images.py",
        "if len(encoded) > MOST_BYTES // 3 * 4 + 4:",
        "if False:",
        f"{REQUEST}::test_other_shapes_are_refused",
    ),
)
