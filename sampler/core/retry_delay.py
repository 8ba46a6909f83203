"""How long a failed slot or group waits before it is tried again."""

from sampler.core.settings.core_config import CoreConfig

MAX_RETRY_DELAY_S = 300.0


def retry_delay_s(config: CoreConfig, failures: int) -> float:
    """Doubled with every failure."""
    return float(min(MAX_RETRY_DELAY_S, config.queue.retry_delay_s * 2.0**failures))
