"""What each family of vision models makes of an image: its tokens in the prompt, and the arrays for its vision tower."""

from shared.images.families.known import family_of
from shared.images.families.protocol import Family

__all__ = ["Family", "family_of"]
