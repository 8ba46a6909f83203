"""The largest memory that this process held since a moment: resident set on Linux, allocated by PyTorch on a GPU."""

import re
from pathlib import Path

import torch


def reset_peak(device: torch.device) -> int:
    """Start measuring; returns the bytes held now."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM := VmRSS
    return _status_bytes("VmRSS")


def peak_bytes(device: torch.device) -> int:
    """The most bytes held since `reset_peak`."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _status_bytes("VmHWM")


def _status_bytes(name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match is not None, f"no {name} in /proc/self/status"
    return int(match[1]) * 1024
