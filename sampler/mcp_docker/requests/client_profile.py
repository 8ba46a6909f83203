"""What a client says of itself, as the profile of the tool servers that it gets."""

from typing import Any

from mcp_types import INVALID_PARAMS

from sampler.mcp_docker.links.messages import RequestId, refusal
from sampler.mcp_docker.starting.tool_set import Profile
from shared.http.asgi import HttpRefusal

MAX_CAPABILITIES_CHARS = 16 * 1024  # the gateway remembers them


def client_profile(number: RequestId, capabilities: Any) -> Profile:
    """Of the client that sent the request `number`. Raises HttpRefusal."""
    profile = Profile.of(capabilities if isinstance(capabilities, dict) else {})
    size = len(profile.capabilities_json)
    if size > MAX_CAPABILITIES_CHARS:
        why = f"the client's capabilities have {size} characters; expected at most {MAX_CAPABILITIES_CHARS}"
        raise HttpRefusal(400, refusal(number, INVALID_PARAMS, why))
    return profile
