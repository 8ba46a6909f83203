"""ENGINE=local,vllm: a launch starts one engine of each kind that it names, each under a keeper of its own."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from shared.errors import ConfigError
from tandem.launch import dry_run
from tandem.launch.engine_size import engine_size
from tandem.launch.launched_engines import LaunchedEngines
from tandem.launch.policies import load_policies

SMALL = ["demo", "--dry-run", "--eval_file", ""]


@pytest.fixture(autouse=True)
def _no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def keepers(*arguments: str) -> dict[str, str]:
    """{process: its command}"""
    text = io.StringIO()
    assert dry_run.show(Console(file=text, width=1000), load_policies([*SMALL, *arguments])) == 0
    found = re.findall(
        r"^(engine \S+), log .*\n(?:    .*\n)*?    (.*sampler\.engine\.keeper.*)$", text.getvalue(), re.M
    )
    return dict(found)


@pytest.mark.parametrize("order", ["local,vllm", "vllm, local"])
def test_each_kind_gets_a_keeper_and_the_options_that_are_its_own(order: str) -> None:
    plan = keepers("--engine", order, "--engine_flags=--dtype bfloat16")
    assert sorted(plan) == ["engine 0-local", "engine 0-vllm"]
    assert "--engine_command" not in plan["engine 0-local"]
    assert "--max_running_requests" in plan["engine 0-local"]
    assert re.search(r"vllm_cpu\.sh serve \{model\} .*--dtype bfloat16", plan["engine 0-vllm"])
    assert "--max_running_requests" not in plan["engine 0-vllm"], "vLLM's keeper refuses sizes of the local engine"


def test_one_kind_has_the_name_that_it_always_had() -> None:
    assert [*keepers("--engine", "vllm")] == ["engine 0"]


def test_a_size_of_the_local_engine_that_the_other_keeper_would_refuse_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TANDEM_KEEPER_KV_CACHE_BYTES", "100000000")
    policies = load_policies([*SMALL, "--engine", "local"])
    assert engine_size(policies, policies[0])
    policies = load_policies([*SMALL, "--engine", "local,sglang"])
    with pytest.raises(ConfigError, match="kv_cache_bytes is for the local engine, and engine_command is set"):
        engine_size(policies, policies[0])


def test_auto_is_vllm_where_it_is_installed_and_the_processor_is_fast_with_it_else_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp, cpu = tmp_path / "install.stamp", tmp_path / "cpuinfo"
    cpu.write_text("processor : 0\nflags\t\t: fpu avx2 avx512f avx512_bf16\n", encoding="utf-8")
    monkeypatch.setattr("tandem.launch.launched_engines.CPU_INFO", cpu)
    monkeypatch.setattr("tandem.launch.launched_engines.VLLM_ON_A_CPU", stamp)
    (owner,) = load_policies([*SMALL, "--engine", "auto"])
    assert (owner.kinds, owner.says_engine) == (["local"], False)
    stamp.touch()
    (owner,) = load_policies([*SMALL, "--engine", "auto"])
    assert (owner.kinds, owner.says_engine) == (["vllm"], False)
    cpu.write_text("Features\t: fp asimd bf16\n", encoding="utf-8")
    assert load_policies([*SMALL, "--engine", "auto"])[0].kinds == ["vllm"]
    cpu.write_text("flags\t\t: fpu avx2\n", encoding="utf-8")
    assert load_policies([*SMALL, "--engine", "auto"])[0].kinds == ["local"]
    cpu.unlink()
    assert load_policies([*SMALL, "--engine", "auto"])[0].kinds == ["local"]
    (owner,) = load_policies([*SMALL, "--engine", "auto", "--engine_urls", "http://127.0.0.1:9"])
    assert not owner.starts_engine


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"engine": "local,local"}, "ENGINE is local,local; expected each kind once"),
        ({"engine": "local,none"}, "ENGINE is local,none; expected none alone"),
        ({"engine": "auto,local"}, "ENGINE is auto,local; expected auto alone"),
        ({"engine": ""}, "at least 1 item"),
        ({"engine": "local,vlm"}, "'local', 'sglang', 'vllm' or 'none'"),
        (
            {"engine": "sglang,vllm", "engine_flags": "--dtype bfloat16"},
            "ENGINE is sglang,vllm; expected .* one of them",
        ),
    ],
)
def test_a_list_that_names_no_engines_to_start_is_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LaunchedEngines(**given)  # type: ignore[arg-type]  # as text, which environment and flags are


def test_on_gpus_one_kind_has_them() -> None:
    with pytest.raises(
        ConfigError, match=r"ENGINE is sglang,vllm, and the engines of policy main get GPUs; expected one kind"
    ):
        load_policies([*SMALL, "--assume_gpus", "2", "--engine", "sglang,vllm"])
