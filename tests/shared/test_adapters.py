"""An adapter and its base give the same bits on every machine, or an error."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.errors import DataError
from shared.weights import adapters
from shared.weights.adapters import merge, merge_into, merged_files
from shared.weights.files import manifest_of
from tests.shared.adapters import random_factors, read_adapter, write_adapter

SHAPES = {"layers.0.up": (9, 7), "layers.1.up": (5, 11)}


def write_base(folder: Path, dtype: torch.dtype) -> Path:
    """Two shards, each with a matrix that is merged between others."""
    folder.mkdir()
    for shard, (layer, shape) in enumerate(SHAPES.items()):
        tensors = {"a.weight": (3, 3), f"{layer}.weight": shape, "z.weight": (4,)}
        random = torch.Generator().manual_seed(shard)
        made = {f"{name}": torch.randn(*size, generator=random).to(dtype) for name, size in tensors.items()}
        save_file(
            {n if n.startswith("layers") else f"{shard}.{n}": t for n, t in made.items()},
            folder / f"{shard}.safetensors",
        )
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("base", "factor", "exact"), [("f4", "f4", "f4"), ("f4", "f8", "f8"), ("f8", "f4", "f8")])
def test_a_merge_is_its_formula_number_by_number(
    base: str, factor: str, exact: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no processor and no library has a say in the order of additions."""
    monkeypatch.setattr(adapters, "BLOCK_NUMBERS", 13)  # blocks of two rows, and a last one of one
    random = np.random.default_rng(3)
    w, a, b = (random.normal(size=s).astype(t) for s, t in (((9, 6), base), ((5, 6), factor), ((9, 5), factor)))
    found = merge(w, (a, b), 0.3, threads)
    kind: Any = np.dtype(exact).type
    assert found.dtype == exact
    for i, j in np.ndindex(w.shape):
        total = kind(b[i, 0]) * kind(a[0, j])
        for k in range(1, 5):
            total = kind(total + kind(kind(b[i, k]) * kind(a[k, j])))
        assert found[i, j] == kind(kind(w[i, j]) + kind(total * kind(0.3)))


@pytest.mark.parametrize("width", [1, 2, 3, 8, 13])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_merge_with_magnitudes_is_its_formula_and_squares_are_added_by_halves(
    width: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "BLOCK_NUMBERS", 13)
    random = np.random.default_rng(4)
    w, a, b, m = (random.normal(size=s).astype("f4") for s in ((9, width), (2, width), (9, 2), (9,)))
    found, plain = merge(w, (a, b), 0.3, threads, m), merge(w, (a, b), 0.3)

    def added(squares: list[float]) -> float:
        half = len(squares) // 2
        if not half:
            return squares[0]
        sums = [squares[k] + squares[half + k] for k in range(half)]
        if len(squares) % 2:
            sums[0] += squares[-1]
        return added(sums)

    for i, j in np.ndindex(w.shape):
        norm = np.float32(added([float(x) ** 2 for x in plain[i]]) ** 0.5)
        assert found[i, j] == plain[i, j] * (m[i] / norm)
    assert found.dtype == np.float32


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_files_are_those_that_were_announced_and_change_in_the_merged_matrices_alone(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    base = write_base(tmp_path / "base", dtype)
    factors = random_factors(SHAPES, 3, 0.5)
    adapter = read_adapter(write_adapter(tmp_path / "adapter", factors, 6.0))
    announced = merged_files(base, manifest_of(base), adapter)
    merged = Path(shutil.copytree(base, tmp_path / "merged"))
    merge_into(merged, adapter, threads=2)
    assert manifest_of(merged) == announced
    assert announced["config.json"] == manifest_of(base)["config.json"]
    for shard in ("0.safetensors", "1.safetensors"):
        old, new = load_file(base / shard), load_file(merged / shard)
        for name, tensor in new.items():
            layer = name.removesuffix(".weight")
            if layer not in factors:
                assert torch.equal(tensor, old[name])
                continue
            wide = old[name].double() if dtype is torch.float64 else old[name].float()
            exact = torch.from_numpy(merge(wide.numpy(), factors[layer], 2.0))
            assert torch.equal(tensor, exact.to(dtype)), "rounded once, as torch rounds"
            assert not torch.equal(tensor, old[name])


def test_a_nan_weight_stays_nan(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", torch.bfloat16)
    factors = random_factors(SHAPES, 2, 0.5)
    factors["layers.0.up"][1][4, 1] = np.nan
    merge_into(base, read_adapter(write_adapter(tmp_path / "adapter", factors, 2.0)))
    assert load_file(base / "0.safetensors")["layers.0.up.weight"].isnan().sum() == 7, "one row"


def test_an_adapter_of_another_base_is_refused_with_the_reason(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", torch.float32)

    def refused(shapes: dict[str, tuple[int, int]], **config: Any) -> str:
        folder = write_adapter(tmp_path / "adapter", random_factors(shapes, 2, 0.5), 2.0, **config)
        with pytest.raises(DataError) as told:
            merge_into(base, read_adapter(folder))
        return str(told.value)

    before = manifest_of(base)
    assert "1 layers of the adapter are not in its files, such as layers.7.up" in refused(
        {**SHAPES, "layers.7.up": (2, 2)}
    )
    assert "layers.0.up.weight has shape (9, 7); the adapter's is (7, 9)" in refused({"layers.0.up": (7, 9)})
    assert "with use_dora lora_magnitude_vector too; use_dora is True" in refused(SHAPES, use_dora=True)
    assert "adapter_config.json: ValueError" in refused(SHAPES, r="four")
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"r": 2, "lora_alpha": 2}')
    save_file(
        {"base_model.model.layers.0.up.lora_A.weight": torch.zeros(2, 7)},
        tmp_path / "adapter" / "adapter_model.safetensors",
    )
    with pytest.raises(DataError, match="expected only lora_A and lora_B of each layer"):
        read_adapter(tmp_path / "adapter")
    assert manifest_of(base) == before
    cut = base / "1.safetensors"
    cut.write_bytes(cut.read_bytes()[:-60])
    assert "is not a whole safetensors file" in refused(SHAPES)
