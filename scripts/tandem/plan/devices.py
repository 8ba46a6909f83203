"""What a GPU can do at most, by the makers' data sheets: dense bfloat16, the SXM form where there are several.

    a100   NVIDIA A100 80GB datasheet (2021)             h20    NVIDIA H20 datasheet (2024)
    h100   NVIDIA H100 Tensor Core GPU datasheet (2023)  b200   NVIDIA DGX B200 datasheet (2024), an eighth of it
    h200   NVIDIA H200 Tensor Core GPU datasheet (2024)  l40s   NVIDIA L40S datasheet (2023), whose link is PCIe 4.0

`link` and `network` are of one direction: NVLink within a machine, and one network adapter a GPU between machines (200 Gb/s for
an A100 or L40S, else 400 Gb/s, as in NVIDIA's DGX machines).
"""

from dataclasses import dataclass

from shared.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Device:
    """Memory in GiB as nvidia-smi shows it, speeds a second."""

    name: str
    memory_gib: float
    flops: float
    bandwidth: float  # bytes, of its memory
    link: float  # bytes, to the GPUs of its machine
    network: float  # bytes, to those of others


DEVICES = {
    device.name: device
    for device in (
        Device("a100", 80.0, 312e12, 2.04e12, 300e9, 25e9),
        Device("h20", 95.6, 148e12, 4.0e12, 450e9, 50e9),
        Device("h100", 79.6, 989e12, 3.35e12, 450e9, 50e9),
        Device("h200", 140.4, 989e12, 4.8e12, 450e9, 50e9),
        Device("b200", 179.0, 2250e12, 8.0e12, 900e9, 50e9),
        Device("l40s", 45.0, 362e12, 0.864e12, 32e9, 25e9),
    )
}


def device_of(name: str) -> Device:
    """Raises ConfigError."""
    if name.lower() not in DEVICES:
        raise ConfigError(f"gpu is {name!r}; expected one of {', '.join(DEVICES)}")
    return DEVICES[name.lower()]
