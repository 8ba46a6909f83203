"""bitsandbytes, which is an extra: its numbers of 8 and 4 bits."""

import logging
from typing import Any

from shared.errors import ConfigError


def bitsandbytes_functional(setting: str) -> Any:
    """The module `bitsandbytes.functional`; its functions have no types. Raises ConfigError, naming the setting that needs it."""
    logging.getLogger("bitsandbytes").setLevel(
        logging.ERROR
    )  # it warns of a kernel for inference, which nobody here calls
    try:
        from bitsandbytes import functional  # imported here: it takes seconds
    except ImportError as exc:
        raise ConfigError(f"{setting} needs bitsandbytes: pip install tandem-rl[quantized]") from exc
    return functional
