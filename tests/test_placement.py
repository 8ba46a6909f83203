"""Which GPUs trainers and engines get: the rules over tables, what `gpus` may say, and what a machine has."""

import stat
from pathlib import Path

import pytest

from shared.errors import ConfigError
from tandem.launch.gpus import Gpu, GpuSettings, PolicyGpus, visible_gpus
from tandem.launch.placement import Wanted, lines, place

MAIN = Wanted("main", heads=32)
TURNS = "trainer-main"


def text(count: int, *wanted: Wanted, given: dict[str, PolicyGpus] | None = None) -> list[str]:
    return [line.removeprefix("GPUs of policy ") for line in lines(place(count, wanted, given or {}))]


@pytest.mark.parametrize(
    ("count", "wanted", "expected"),
    [
        (0, [MAIN], []),
        (1, [MAIN], ["main: trainer 0; engine 0 by turns with the trainer"]),
        (2, [MAIN], ["main: trainer 0; engine 1"]),
        (3, [MAIN], ["main: trainer 0; engine 1; engine 2"]),
        (4, [MAIN], ["main: trainer 0,1; engine 2; engine 3"]),
        (8, [MAIN], ["main: trainer 0,1,2,3; engine 4; engine 5; engine 6; engine 7"]),
        (2, [Wanted("main", engines=False)], ["main: trainer 0,1"]),
        (2, [Wanted("main", trains=False)], ["main: engine 0; engine 1"]),
        (2, [Wanted("a"), Wanted("b")], [f"{p}: trainer {g}; engine {g} by turns with the trainer" for p, g in ("a0", "b1")]),
        (4, [Wanted("a"), Wanted("b", trains=False)], ["a: trainer 0; engine 1", "b: engine 2; engine 3"]),
        (5, [Wanted("a"), Wanted("b")], ["a: trainer 0; engine 1; engine 2", "b: trainer 3; engine 4"]),
        (2, [Wanted("a"), Wanted("b", trains=False, engines=False)], ["a: trainer 0; engine 1"]),
    ],
)  # fmt: skip
def test_gpus_are_shared_out(count: int, wanted: list[Wanted], expected: list[str]) -> None:
    assert text(count, *wanted) == expected


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 16, 64])
@pytest.mark.parametrize("policies", [1, 2, 3])
def test_every_gpu_is_used_and_only_a_single_one_is_used_twice(count: int, policies: int) -> None:
    wanted = [Wanted(f"p{k}") for k in range(policies)]
    if count < policies:
        with pytest.raises(ConfigError, match=f"{policies} policies on {count} GPUs"):
            place(count, wanted, {})
        return
    placed = place(count, wanted, {})
    trainers = [gpu for one in placed.values() for gpu in one.trainer]
    engines = [gpu for one in placed.values() for engine in one.engines for gpu in engine.gpus]
    assert {*trainers, *engines} == set(range(count))
    assert len(set(trainers)) == len(trainers)
    assert len(set(engines)) == len(engines)
    for one in placed.values():
        assert one.trainer
        assert one.engines
        shared = [engine for engine in one.engines if set(engine.gpus) & set(one.trainer)]
        assert (
            bool(shared)
            == (one.shared_device is not None)
            == (
                count // policies == 1
                and len(one.trainer) == 1
                and len(one.engines) == 1
                and one.engines[0].gpus == one.trainer
            )
        )
        assert {engine.shared_device for engine in shared} <= {one.shared_device}


def test_what_is_given_is_taken() -> None:
    given = {"main": PolicyGpus(trainer=[0, 1, 2, 3], engines=[[0, 1], [2, 3], [4, 5]])}
    (one,) = place(6, [MAIN], given).values()
    assert one.shared_device == TURNS
    assert [engine.shared_device for engine in one.engines] == [TURNS, TURNS, None]


def test_an_engine_may_take_turns_with_another_policys_trainer() -> None:
    given = {"a": PolicyGpus(trainer=[0], engines=[[1]]), "b": PolicyGpus(engines=[[0]])}
    placed = place(2, [Wanted("a"), Wanted("b", trains=False)], given)
    assert placed["b"].engines[0].shared_device == placed["a"].shared_device == "trainer-a"
    assert placed["a"].engines[0].shared_device is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"main": {"trainer": [0], "engines": [[8]]}}, r"main\.engines\.0: GPU 8 is not there; .* has 8 \(0 to 7\)"),
        ({"main": {"trainer": [0, 0], "engines": [[1]]}}, r"gpus\.main\.trainer: \[0, 0\] names a GPU twice"),
        ({"main": {"trainer": [0], "engines": [[1], [2, 1]]}}, r"main\.engines\.1: GPU 1 is already given to gpus\.main\.eng"),
        ({"main": {"trainer": [0], "engines": [[1, 2, 3]]}}, r"main\.engines\.0: 3 GPUs, but the model has 32 att"),
        ({"main": {"trainer": [0], "engines": [[]]}}, r"gpus\.main\.engines\.0 is empty"),
        ({"main": {"trainer": [0]}}, r"gpus\.main\.engines is empty"),
        ({"main": {"engines": [[0]]}}, r"gpus\.main\.trainer is empty"),
        ({"other": {"trainer": [0], "engines": [[1]]}}, r"gpus\.other: there is no such policy; expected main"),
        ({"main": {"trainer": [-1], "engines": [[1]]}}, r"gpus\.main\.trainer: GPU -1 is not there"),
    ],
)  # fmt: skip
def test_a_bad_value_names_its_field(given: dict[str, dict[str, list[int]]], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        place(8, [MAIN], {policy: PolicyGpus(**gpus) for policy, gpus in given.items()})  # type: ignore[arg-type]  # plain values, which pydantic reads


def test_gpus_of_several_policies_are_kept_apart() -> None:
    wanted = [Wanted("a"), Wanted("b")]
    twice = {"a": PolicyGpus(trainer=[0], engines=[[1]]), "b": PolicyGpus(trainer=[0], engines=[[2]])}
    with pytest.raises(ConfigError, match=r"gpus\.b\.trainer: GPU 0 is already given to gpus\.a\.trainer"):
        place(3, wanted, twice)
    across = {"a": PolicyGpus(trainer=[0], engines=[[0, 1]]), "b": PolicyGpus(trainer=[1], engines=[[2]])}
    with pytest.raises(ConfigError, match=r"gpus\.a\.engines\.0: GPUs 0,1 belong to the trainers of a and b"):
        place(3, wanted, across)
    with pytest.raises(ConfigError, match=r"GPU 0 is not there; this machine has none"):
        place(0, [MAIN], {"main": PolicyGpus(trainer=[0], engines=[[1]])})
    with pytest.raises(ConfigError, match=r"gpus\.main\.trainer: this launch starts none"):
        place(2, [Wanted("main", trains=False)], {"main": PolicyGpus(trainer=[0], engines=[[1]])})


# ---------------------------------------------------------------------- what the machine has


def fake_nvidia_smi(folder: Path, *rows: str, status: int = 0) -> dict[str, str]:
    """A program that answers as NVIDIA's does; the environment in which it is found."""
    program = folder / "nvidia-smi"
    program.write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows) + f"exit {status}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{folder}:/bin:/usr/bin"}


ROWS = ("GPU-aaaa-1, 81559", "GPU-bbbb-2, 81559", "GPU-cccc-3, [N/A]")


def test_the_gpus_that_nvidia_smi_lists_are_found_with_their_memory(tmp_path: Path) -> None:
    environ = fake_nvidia_smi(tmp_path, *ROWS)
    assert visible_gpus(GpuSettings(), environ) == [Gpu("0", 81559), Gpu("1", 81559), Gpu("2", 0)]
    assert visible_gpus(GpuSettings(assume_gpus=2), environ) == [Gpu("0"), Gpu("1")]


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("", []), ("-1", []), ("NoDevFiles", []), ("2,0", ["2", "0"]), ("GPU-bbbb", ["GPU-bbbb"]), (" 1 , 2 ", ["1", "2"]),
        ("1,-1,2", ["1"]), ("1,9,2", ["1"]), ("1,GPU-dddd,2", ["1"]), ("1,,2", ["1"]), ("1,GPU-,2", ["1"]), ("aaaa", []),
        ("MIG-aaaa-1,MIG-bbbb", ["MIG-aaaa-1", "MIG-bbbb"]),
    ],
)  # fmt: skip
def test_cuda_visible_devices_chooses_among_them(tmp_path: Path, visible: str, names: list[str]) -> None:
    environ = fake_nvidia_smi(tmp_path, *ROWS) | {"CUDA_VISIBLE_DEVICES": visible}
    assert [gpu.name for gpu in visible_gpus(GpuSettings(), environ)] == names


def test_a_gpu_that_is_not_there_ends_the_list_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    environ = fake_nvidia_smi(tmp_path, *ROWS) | {"CUDA_VISIBLE_DEVICES": "0,3,1"}
    assert [gpu.name for gpu in visible_gpus(GpuSettings(), environ)] == ["0"]
    assert "CUDA_VISIBLE_DEVICES names '3', which is none of this machine's GPUs (3)" in caplog.text


@pytest.mark.parametrize("visible", ["0", "0,1", "NoDevFiles", "GPU-aaaa", "MIG-aaaa", "nonsense", ""])
def test_a_machine_without_gpus_starts_with_any_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, visible: str
) -> None:
    """As on a laptop whose shell exports one."""
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        assert visible_gpus(GpuSettings(), {"PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": visible}) == []
        assert not caplog.text


def test_a_driver_that_does_not_answer_counts_as_none(tmp_path: Path) -> None:
    environ = fake_nvidia_smi(tmp_path, "NVIDIA-SMI has failed", status=9)
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        assert visible_gpus(GpuSettings(), environ) == []
