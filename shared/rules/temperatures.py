"""The temperatures at which training can sample. In evaluation any from 0 on can be used."""

# Log-probs are those of the logits divided by the temperature: at 0 they are NaN, and below this float32's error of a logit of 30
# (2e-6) is more than 2e-3 nats. SGLang samples greedily below 1e-6, and reports log-probs at temperature 1.
LEAST_TEMPERATURE = 1e-3


def temperature_problem(temperature: float) -> str | None:
    """Why a training episode cannot be sampled at it; None: it can."""
    if temperature >= LEAST_TEMPERATURE:
        return None
    return (
        f"temperature is {temperature:g}; expected at least {LEAST_TEMPERATURE:g} in training, since log-probs are divided by "
        "it; evaluation may have 0 (eval_temperature, or a task of another split)"
    )
