"""A device that the trainer shares with engines."""

from pydantic import Field

from shared.configuration.sections import Section


class SharingSettings(Section):
    """A device used by turns: engines sleep while a step is computed, and the trainer's states are on the host between steps."""

    shared_device: str | None = Field(
        None,
        min_length=1,
        description="Name of a device that this trainer shares with the engines whose keepers have the same setting: it asks for "
        "the device before each step, and they release their memory (docs/run/gpus.md). None: it has its own.",
    )
    device_lease_s: float = Field(
        60.0, gt=0, description="If the trainer is killed while it has the device, engines wake after this time."
    )
