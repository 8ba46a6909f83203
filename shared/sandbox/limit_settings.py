"""Limits of sandboxed processes as settings: MCP-Docker's, for tools, and the sampler's, for agents."""

from typing import Annotated

from pydantic import BaseModel, Field

from shared.sandbox.launch import SandboxLimits

Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]
_DEFAULTS = SandboxLimits()


class LimitSettings(BaseModel):
    """Of one start, with all its descendants."""

    cpu_s: Seconds = Field(_DEFAULTS.cpu_s, description="Processor time.")
    memory_mb: Count = Field(_DEFAULTS.memory_mb, description="Memory.")
    processes: Count = Field(_DEFAULTS.processes, description="Processes and threads of a session.")
    open_files: Count = Field(_DEFAULTS.open_files, description="Open files of one process.")
    file_mb: Count = Field(_DEFAULTS.file_mb, description="Size of one file.")
    folder_mb: Count = Field(_DEFAULTS.folder_mb, description="All files of a session together.")
    output_mb: Count = Field(_DEFAULTS.output_mb, description="Output on stdout and stderr together.")
