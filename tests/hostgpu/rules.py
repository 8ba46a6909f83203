"""What CUDA would refuse, by PyTorch's own list of operators and kernels (native_functions.yaml, which its wheel has)."""

import re
from pathlib import Path

import torchgen

LISTED = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
TAKES_HOST_TENSORS = (  # their kernels for CUDA accept indices, sizes or values on the host
    "aten::index",
    "aten::_index_put_impl_",
    "aten::index_put",
    "aten::index_put_",
    "aten::_unsafe_index",
    "aten::_unsafe_index_put",
    "aten::copy_",
    "aten::_to_copy",
    "aten::set_",
    "aten::repeat_interleave",
)
OTHER_LIBRARIES = (  # operators outside of aten that have a kernel for every device
    "bitsandbytes::quantize_4bit",
    "bitsandbytes::dequantize_4bit",
    "bitsandbytes::optimizer_update_8bit_blockwise",
)


def operator_rules() -> tuple[set[str], set[str], set[str], set[str]]:
    """Operators for CPUs only; that check the device of all tensors; with arguments on the host; of other libraries."""
    cpu_only, one_device = set(), set()
    for entry in re.split(r"^- func: ", LISTED.read_text(), flags=re.MULTILINE)[1:]:
        name = "aten::" + entry.split("(", 1)[0]
        kernels = set(re.findall(r"^    ([A-Z][\w, ]*):", entry, flags=re.MULTILINE))
        keys = {key.strip() for line in kernels for key in line.split(",")}
        delegated = re.search(r"^  structured_delegate:", entry, flags=re.MULTILINE) is not None
        general = any(key.startswith("Composite") for key in keys)
        if "CPU" in keys and "CUDA" not in keys and not delegated and not general:
            cpu_only.add(name)
        if not re.search(r"^  device_check: NoCheck", entry, flags=re.MULTILINE) and ("CUDA" in keys or delegated):
            one_device.add(name)
    return cpu_only, one_device, set(TAKES_HOST_TENSORS), set(OTHER_LIBRARIES)
