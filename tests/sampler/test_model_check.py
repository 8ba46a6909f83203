"""What of a model cannot work is named in one table before anything runs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from shared.errors import ConfigError, DataError
from shared.weights.layout import read_layout
from tandem.launch import check_model as program
from tandem.launch import model_check
from tandem.launch.model_check import DEFAULT_CHOICE, CheckFinding, CheckState, check_model, failures
from tests.shared.vision_models import write_vision_model

EXAMPLE = Path(__file__).parents[2] / "assets" / "example" / "model"
EMBEDDING, NORM = "model.embed_tokens.weight", "model.layers.1.input_layernorm.weight"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "model"))


def change_weights(model: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    weights = load_file(model / "model.safetensors")
    change(weights)
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


def change_config(model: Path, name: str = "config.json", **values: Any) -> None:
    config = json.loads((model / name).read_text())
    (model / name).write_text(json.dumps(config | values))


def verdict_of(check: Callable[[], CheckFinding]) -> tuple[CheckState, str]:
    try:
        found = check()
    except ConfigError as exc:
        return CheckState.FAILED, str(exc)
    return found.verdict, found.text


def test_the_bundled_model_is_whole() -> None:
    rows = check_model(EXAMPLE)
    assert {row.name: row.verdict for row in rows} == dict.fromkeys((row.name for row in rows), CheckState.OK)
    assert len(rows) == 7


def test_a_missing_tensor_and_a_wrong_tokenizer_are_rows_of_one_table(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change_weights(model, lambda weights: weights.pop(NORM))
    change_config(model, "generation_config.json", eos_token_id=424)
    monkeypatch.setattr("sys.argv", ["check-model", str(model)])
    monkeypatch.setenv("COLUMNS", "300")
    assert program.main() == 1
    printed = capsys.readouterr()
    assert NORM in printed.out
    assert "id 424, 424 rows of the embedding" in printed.out
    assert printed.err.splitlines()[-1].endswith(f"1 tensors of the model are in none of its files: {NORM}")


def test_an_untied_model_without_a_head_lacks_a_tensor(model: Path) -> None:
    change_config(model, tie_word_embeddings=False)
    (row,) = failures(check_model(model))
    assert (row.name, "lm_head.weight" in row.found) == ("tensors", True)


def test_a_head_of_its_own_of_a_tied_model_is_refused_and_a_copy_is_not(model: Path) -> None:
    change_weights(model, lambda weights: weights.update({"lm_head.weight": weights[EMBEDDING].copy()}))
    assert verdict_of(lambda: model_check._head(model)) == (CheckState.OK, "tied to the embedding")
    change_weights(model, lambda weights: weights.update({"lm_head.weight": weights[EMBEDDING] * 2}))
    verdict, said = verdict_of(lambda: model_check._head(model))
    assert (verdict, "tie_word_embeddings is true, but lm_head.weight differs" in said) == (CheckState.FAILED, True)
    change_config(model, tie_word_embeddings=False)
    assert verdict_of(lambda: model_check._head(model)) == (CheckState.OK, "of its own")


def test_a_token_that_the_template_writes_beyond_the_embedding_is_refused_and_an_unused_one_is_not(model: Path) -> None:
    def check() -> tuple[CheckState, str]:
        return verdict_of(lambda: model_check._tokenizer(model, DEFAULT_CHOICE))

    assert check()[0] is CheckState.OK
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    last = tokenizer["added_tokens"][-1]
    more = [{**last, "id": 419 + n, "content": f"<|unused{n}|>"} for n in range(6)]
    tokenizer["added_tokens"] += more
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert check()[0] is CheckState.NOTE
    (model / "chat_template.jinja").write_text((model / "chat_template.jinja").read_text() + "{{ '<|unused5|>' }}")
    verdict, said = check()
    assert (verdict, "ids up to 424" in said) == (CheckState.FAILED, True)


def test_quantized_weights_and_replies_without_an_end_are_refused(model: Path) -> None:
    layout = read_layout(model)
    assert verdict_of(lambda: model_check._dtype(layout))[0] is CheckState.OK
    change_weights(model, lambda weights: weights.update({n: w.astype("int8") for n, w in weights.items()}))
    assert verdict_of(lambda: model_check._dtype(read_layout(model)))[0] is CheckState.FAILED
    for name in ("config.json", "generation_config.json"):
        change_config(model, name, eos_token_id=None)
    assert verdict_of(lambda: model_check._end_of_reply(model))[0] is CheckState.OK, "the tokenizer has one"
    change_config(model, "tokenizer_config.json", eos_token=None)
    assert verdict_of(lambda: model_check._end_of_reply(model)) == (CheckState.FAILED, "none")


def test_a_truncated_file_is_the_only_row(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    (row,) = check_model(model)
    assert (row.name, row.verdict) == ("files", CheckState.FAILED)
    assert "is not a whole safetensors file" in row.found


@pytest.mark.parametrize(
    "index", ["[]", '{"weight_map": 1}', '{"weight_map": {"a": 3}}', '{"weight_map": {"a": "../x.safetensors"}}']
)
def test_an_index_that_is_none_is_named(model: Path, index: str) -> None:
    file = model / "model.safetensors.index.json"
    file.write_text(index)
    with pytest.raises(DataError, match=r"index\.json is not a safetensors index: "):
        read_layout(model)


def test_a_vision_model_has_a_row_about_its_images(tmp_path: Path) -> None:
    rows = {row.name: row for row in check_model(write_vision_model(tmp_path / "model", "smolvlm"))}
    assert {row.verdict for row in rows.values()} == {CheckState.OK}
    assert rows["images"].found == "smolvlm: an image of 1024 x 768 has 52 tokens"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda folder: (folder / "preprocessor_config.json").unlink(), "preprocessor_config.json"),
        (
            lambda folder: (folder / "chat_template.jinja").write_text((EXAMPLE / "chat_template.jinja").read_text()),
            "the prompt has '<image>' 0 times, for 1 images",
        ),
        (lambda folder: change_config(folder, model_type="llava"), "model_type is 'llava', a vision model of a family"),
    ],
)
def test_a_vision_model_whose_images_cannot_be_used_has_a_row_that_failed(
    tmp_path: Path, change: Callable[[Path], Any], found: str
) -> None:
    folder = write_vision_model(tmp_path / "model", "smolvlm")
    change(folder)
    row = next(row for row in check_model(folder) if row.name == "images")
    assert row.verdict is CheckState.FAILED
    assert found in row.found
