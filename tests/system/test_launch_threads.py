"""Threads that a launch gives engines and trainers on processors."""

import io
import os
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from rich.console import Console

from sampler.engine.local.memory import SMALL_MODEL
from tandem.launch import dry_run
from tandem.launch.children import Children, Program
from tandem.launch.policies import load_policies
from tandem.launch.services import start_trainers
from tandem.launch.threads import engine_threads, trainer_threads

LARGE = 4 * SMALL_MODEL


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six cores, without GPUs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))


def size(monkeypatch: pytest.MonkeyPatch, model_bytes: int) -> None:
    monkeypatch.setattr("tandem.launch.threads.weights_bytes", lambda folder: model_bytes)


def threads(*arguments: str) -> tuple[str | None, str | None]:
    """Of an engine, and of a trainer's process."""
    policies = load_policies(["demo", "--eval_file", "", *arguments])
    return engine_threads(policies).get("OMP_NUM_THREADS"), trainer_threads(policies).get("OMP_NUM_THREADS")


@pytest.mark.parametrize(
    ("model_bytes", "arguments", "expected"),
    [
        (LARGE - 1, [], (None, None)),
        (LARGE, [], ("6", "6")),
        (LARGE, ["--num_processes", "2"], ("6", "3")),
        (LARGE, ["--engine", "local,vllm"], ("3", "6")),
        (LARGE, ["--num_processes", "6"], ("6", None)),
    ],
)
def test_processes_of_a_larger_model_have_the_cores_of_the_machine_between_them(
    monkeypatch: pytest.MonkeyPatch, model_bytes: int, arguments: list[str], expected: tuple[str | None, str | None]
) -> None:
    size(monkeypatch, model_bytes)
    assert threads(*arguments) == expected


def test_what_the_environment_says_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    size(monkeypatch, LARGE)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1")
    assert threads() == (None, None)
    policies = load_policies(["demo", "--eval_file", ""])
    assert trainer_threads(policies) == {"MALLOC_MMAP_THRESHOLD_": str(2**30)}


def test_engine_and_trainer_get_them_and_sleep_while_they_wait_and_a_sampler_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size(monkeypatch, LARGE)
    text = io.StringIO()
    assert (
        dry_run.show(Console(file=text, width=1000), load_policies(["demo", "--eval_file", "", "--num_samplers", "1"]))
        == 0
    )
    parts = text.getvalue().split(", log ")
    told = {before.splitlines()[-1].split()[0]: part for before, part in pairwise(parts)}
    for name, count in (("engine", 6), ("trainer", 6)):
        for line in (
            f"OMP_NUM_THREADS={count}",
            "OMP_WAIT_POLICY=PASSIVE",
            "GOMP_SPINCOUNT=0",
            f"MALLOC_MMAP_THRESHOLD_={2**30}",
        ):
            assert f"    {line}\n" in told[name]
    assert "OMP_NUM_THREADS" not in told["sampler"]


def test_a_trainer_that_is_started_again_has_the_share_that_it_had_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    size(monkeypatch, LARGE)
    config = tmp_path / "two.yml"
    config.write_text("launch: {policy: solver}\npolicies: {solver: {}, judge: {}}\n", encoding="utf-8")
    policies = load_policies(["demo", "--eval_file", "", "--config", str(config)])
    started: list[Program] = []
    starting = cast(Children, SimpleNamespace(start=started.append))
    assert start_trainers(policies, starting, "mongodb://db", []) == {}
    for only in (["judge"], None):
        start_trainers(policies, starting, "mongodb://db", only)
    assert [(one.name, one.environment["OMP_NUM_THREADS"]) for one in started] == [
        ("trainer judge 0", "3"),
        ("trainer solver 0", "3"),
        ("trainer judge 0", "3"),
    ]
