"""The launcher's options of the engines: running ones, or which to start, and how."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_settings import NoDecode

from shared.configuration.loading import ServiceConfig
from tandem.launch.comma_lists import CommaList, parts_of
from tandem.launch.places import ROOT

EngineKind = Literal["auto", "local", "sglang", "vllm", "none"]
VLLM_ON_A_CPU = ROOT / ".vllm" / "install.stamp"  # written by scripts/vllm_cpu.sh install
CPU_INFO = Path("/proc/cpuinfo")
BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}  # flags of processors that multiply it: x86, and Arm's


class LaunchedEngines(ServiceConfig):
    """One policy's engines of this machine."""

    engine_urls: CommaList = Field(
        [],
        description="Running engines (SGLang, or vLLM by `python -m sampler.engine.vllm`), comma separated, one keeper each. "
        "Empty: start one engine here.",
    )
    engine: Annotated[list[EngineKind], NoDecode, BeforeValidator(parts_of)] = Field(
        ["local"],
        min_length=1,
        description="The engine to start: the local CPU engine (not the default where there are GPUs); the real SGLang or vLLM, "
        "your own on GPUs, else on a CPU (scripts/sglang_cpu.sh or vllm_cpu.sh installs it once, about 3 GB); auto: vLLM if "
        "vllm_cpu.sh has installed it and the processor multiplies bfloat16, else as if nothing were said; none: other machines "
        "have the engines. Of several, comma separated (local,vllm), one each is started, not on GPUs.",
    )

    engine_flags: str = Field(
        "",
        description="More options of the SGLang or vLLM that is started, such as '--dtype bfloat16' or, with `adapters: engine`, "
        "'--enable-lora --max-lora-rank 16'.",
    )
    serve_versions: list[Annotated[int, Field(ge=0)]] = Field(
        [],
        description="Versions of the policy that actors are pinned to (docs/bring/actors.md): an engine more is started here for "
        "each, which serves that version alone as soon as it is published. Not on GPUs.",
    )

    @field_validator("engine")
    @classmethod
    def each_kind_is_named_once(cls, kinds: list[EngineKind]) -> list[EngineKind]:
        if len(set(kinds)) < len(kinds):
            raise ValueError(
                f"ENGINE is {','.join(kinds)}; expected each kind once: more of one kind get keepers of their own"
            )
        if len(kinds) > 1 and (alone := {"auto", "none"} & set(kinds)):
            raise ValueError(f"ENGINE is {','.join(kinds)}; expected {min(alone)} alone, or the engines to start")
        return kinds

    @model_validator(mode="after")
    def engine_is_either_running_or_started(self) -> Self:
        if self.engine_urls and self.says_engine:
            raise ValueError("ENGINE and ENGINE_URLS exclude each other: start an engine here, or use running ones")
        if self.engine_flags and len({"sglang", "vllm"} & set(self.kinds)) != 1:
            raise ValueError(
                f"ENGINE_FLAGS is {self.engine_flags!r}, and ENGINE is {','.join(self.engine)}; expected ENGINE=sglang or vllm, "
                "one of them, whose options they are"
            )
        return self

    @property
    def says_engine(self) -> bool:
        """Whether it is said which: `auto` leaves it open."""
        return "engine" in self.model_fields_set and self.engine != ["auto"]

    @property
    def kinds(self) -> list[EngineKind]:
        """On processors."""
        if self.engine == ["auto"]:
            return ["vllm" if VLLM_ON_A_CPU.is_file() and _multiplies_bfloat16() else "local"]
        return self.engine

    @property
    def starts_engine(self) -> bool:
        return not self.engine_urls and self.engine != ["none"]


def _multiplies_bfloat16() -> bool:
    """By the first processor's flags. Without it vLLM samples no faster than the local engine (docs/run/engines.md)."""
    try:
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return bool(BFLOAT16 & set(flags.split()))
