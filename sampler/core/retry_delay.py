"""How long a failed slot or group waits before it is tried again."""

from sampler.settings import SamplerConfig

MAX_RETRY_DELAY_S = 300.0


def retry_delay_s(config: SamplerConfig, failures: int) -> float:
    """Doubled with every failure."""
    return float(min(MAX_RETRY_DELAY_S, config.retry_delay_s * 2.0**failures))
