"""Which tensors of a model its files lack, as JSON on standard output: `python -m sampler.engine.local.whole MODEL`.

The model is made without values, so this takes no memory for them. A program of its own, since its caller has no torch.
"""

import json
import sys
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import AutoConfig
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from shared.errors import ConfigError
from shared.images.families.model_class import auto_class


def main() -> None:
    disable_progress_bar()
    set_verbosity_error()
    folder = Path(sys.argv[1])
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        loaded: Any = auto_class(config, folder).from_pretrained(
            folder, device_map="meta", local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True
        )
        model, loading = loaded  # so with `output_loading_info`
    except (OSError, ValueError, KeyError, ImportError, SafetensorError, ConfigError) as exc:
        sys.stdout.write(json.dumps({"error": f"{type(exc).__name__}: {' '.join(str(exc).split())}"}))
        return
    report = {
        "tensors": len(model.state_dict()),
        "missing_keys": sorted(loading["missing_keys"]),
        "unexpected_keys": sorted(loading["unexpected_keys"]),
        "mismatched_keys": sorted(
            (name, list(stored), list(expected)) for name, stored, expected in loading["mismatched_keys"]
        ),
    }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main()
