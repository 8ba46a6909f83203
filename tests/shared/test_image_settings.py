"""A model's files: which family it is of, and every setting of its processor that is not known is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, Idefics3Processor
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from shared.errors import ConfigError
from shared.images.families import family_of
from tests.shared.vision_models import EXAMPLE_MODEL, VISION_FAMILIES, write_vision_model

ONE_OF_EACH = ("idefics3", "qwen2_5_vl")


def change(file: Path, **values: Any) -> None:
    """Set keys of a JSON file; keys `a__b` are inside of `a`."""
    content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for name, value in values.items():
        *outer, last = name.split("__")
        inner = content
        for key in outer:
            inner = inner[key]
        inner[last] = value
    file.write_text(json.dumps(content), encoding="utf-8")


def test_a_text_only_model_has_no_family() -> None:
    assert family_of(EXAMPLE_MODEL) is None


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_a_family_is_named_by_its_model_type(family: str, tmp_path: Path) -> None:
    found = family_of(write_vision_model(tmp_path, family, weights=False))
    assert found is not None
    assert found.name == family


@pytest.mark.parametrize("key", [{"vision_config": {"depth": 2}}, {"image_token_id": 3}, {"image_token_index": 3}])
def test_a_vision_model_of_another_family_is_refused_with_the_known_ones(key: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llava_next", **key}))
    with pytest.raises(ConfigError, match=r"llava_next.*expected one of idefics3, qwen2_5_vl, qwen3_vl, smolvlm"):
        family_of(tmp_path)


@pytest.mark.parametrize("family", ONE_OF_EACH)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("do_center_crop", True),
        ("crop_size", {"height": 10, "width": 10}),
        ("num_frames", 3),
        ("auto_map", {"AutoImageProcessor": "own.Own"}),
    ],
)
def test_an_unknown_setting_is_refused_by_name(family: str, name: str, value: Any, tmp_path: Path) -> None:
    folder = write_vision_model(tmp_path, family, image_processor={name: value}, weights=False)
    with pytest.raises(ConfigError, match=rf"preprocessor_config.json: {name} is .* not supported"):
        family_of(folder)


@pytest.mark.parametrize("family", ONE_OF_EACH)
def test_an_unknown_setting_that_is_null_is_not_set(family: str, tmp_path: Path) -> None:
    folder = write_vision_model(tmp_path, family, weights=False)
    change(
        folder / "preprocessor_config.json",
        crop_size=None,
        do_center_crop=None,
        size={"longest_edge": 99, "height": None},
    )
    if family == "qwen2_5_vl":
        change(folder / "preprocessor_config.json", size=None)
    assert family_of(folder) is not None


@pytest.mark.parametrize("family", ONE_OF_EACH)
def test_an_unknown_setting_of_the_processor_is_refused_by_name(family: str, tmp_path: Path) -> None:
    folder = write_vision_model(tmp_path, family, weights=False)
    change(folder / "processor_config.json", image_break_token="<br>")
    with pytest.raises(
        ConfigError, match=r"processor_config.json: image_break_token is '<br>', which is not supported"
    ):
        family_of(folder)


@pytest.mark.parametrize(
    ("family", "name", "value", "expected"),
    [
        ("idefics3", "size", {"longest_edge": 0}, "longest_edge"),
        ("idefics3", "size", {"longest_edge": 64, "shortest_edge": 32}, "longest_edge"),
        ("idefics3", "max_image_size", {"height": 32}, "longest_edge"),
        ("idefics3", "do_image_splitting", "yes", "true or false"),
        ("idefics3", "do_normalize", False, "others"),  # black would be all 0
        ("idefics3", "resample", 9, r"1 \(lanczos\)"),
        ("idefics3", "rescale_factor", 0, "above 0"),
        ("idefics3", "image_processor_type", "LlavaImageProcessor", "Idefics3ImageProcessor"),
        ("qwen3_vl", "size", {"longest_edge": 5, "max_pixels": 7}, "shortest_edge"),
        ("qwen2_5_vl", "min_pixels", -1, "at least 1"),
        ("qwen2_5_vl", "merge_size", True, "at least 1"),
        ("qwen2_5_vl", "do_resize", False, "true"),
        ("qwen2_5_vl", "image_mean", [0.5, 0.5], "three numbers"),
        ("qwen2_5_vl", "image_std", [0.5, 0.0, 0.5], "other than 0"),
    ],
)
def test_a_setting_with_a_wrong_value_is_refused(
    family: str, name: str, value: Any, expected: str, tmp_path: Path
) -> None:
    folder = write_vision_model(tmp_path, family, image_processor={name: value}, weights=False)
    with pytest.raises(ConfigError, match=rf"preprocessor_config.json: .*{name}.*expected .*{expected}"):
        family_of(folder)


@pytest.mark.parametrize(
    ("family", "file", "values", "words"),
    [
        ("idefics3", "processor_config.json", {"image_seq_len": 64}, "image_seq_len is 64 .* expected 4:"),
        ("idefics3", "config.json", {"scale_factor": 4}, "image_seq_len is 4 .* expected 1:"),
        ("idefics3", "config.json", {"image_token_id": 7}, "image_token_id of config.json is 7"),
        ("idefics3", "config.json", {"vision_config": None}, "vision_config is missing"),
        (
            "idefics3",
            "tokenizer_config.json",
            {"image_token": "<picture>"},
            "image_token is '<picture>'; expected '<image>'",
        ),
        (
            "idefics3",
            "tokenizer_config.json",
            {"extra_special_tokens": {"fake_image_token": "<x>"}},
            "fake_image_token is '<x>'",
        ),
        ("qwen2_5_vl", "config.json", {"vision_config__patch_size": 14}, "patch_size is 8, and patch_size .* is 14"),
        (
            "qwen2_5_vl",
            "config.json",
            {"vision_config__spatial_merge_size": 3},
            "merge_size is 2, and spatial_merge_size .* is 3",
        ),
        ("qwen2_5_vl", "config.json", {"image_token_id": 7}, "image_token_id of config.json is 7"),
    ],
)
def test_files_that_contradict_each_other_are_refused(
    family: str, file: str, values: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder = write_vision_model(tmp_path, family, weights=False)
    change(folder / file, **values)
    with pytest.raises(ConfigError, match=words):
        family_of(folder)


@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json", "tokenizer.json"])
def test_a_missing_file_is_named(file: str, tmp_path: Path) -> None:
    folder = write_vision_model(tmp_path, "qwen3_vl", weights=False)
    (folder / file).unlink()
    with pytest.raises(ConfigError, match=file):
        family_of(folder)


def test_settings_inside_processor_config_come_first_as_in_transformers(tmp_path: Path) -> None:
    folder = write_vision_model(tmp_path, "qwen3_vl", weights=False)
    before = family_of(folder)
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    settings["size"] = {"shortest_edge": 40000, "longest_edge": 80000}
    change(folder / "processor_config.json", image_processor=settings, video_processor={"fps": 2})
    after = family_of(folder)
    assert before is not None
    assert after is not None
    assert before.features(64, 64) == 16
    assert after.features(64, 64) > 150


def test_a_processor_that_transformers_saved_is_read(tmp_path: Path) -> None:
    """Such files have every setting, nulls included."""
    tiles = write_vision_model(tmp_path / "tiles", "idefics3", weights=False)
    before = family_of(tiles)
    images, tokenizer = Idefics3ImageProcessorPil.from_pretrained(tiles), AutoTokenizer.from_pretrained(tiles)
    (tiles / "preprocessor_config.json").unlink()
    Idefics3Processor(images, tokenizer, image_seq_len=4).save_pretrained(tiles)
    grid = write_vision_model(tmp_path / "grid", "qwen2_5_vl", weights=False)
    Qwen2VLImageProcessorPil.from_pretrained(grid).save_pretrained(grid)
    after, of_grid = family_of(tiles), family_of(grid)
    assert before is not None
    assert after is not None
    assert of_grid is not None
    assert after.tokens(40, 100) == before.tokens(40, 100)
    assert of_grid.features(64, 64) == 16
