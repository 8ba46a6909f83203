"""What the gateway answers instead of serving a request."""

from shared.errors import TandemError


class GatewayBusy(TandemError):
    """No set of tool processes is free now; a client asks again after `retry_after_s`."""

    def __init__(self, why: str, retry_after_s: float) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


class StartFailed(TandemError):
    """A tool server does not start, or does not speak MCP: the message names it and quotes the end of its stderr."""


class ServerGone(TandemError):
    """A tool server of a session ended: its state is lost, and so it is not started again in this session."""


class ServerAway(ServerGone):
    """A tool server did not serve this request, and may serve the next one. `code`: of its refusal, if it sent one."""

    def __init__(self, why: str, code: object = None) -> None:
        super().__init__(why)
        self.code = code


class Refused(TandemError):
    """A request that JSON-RPC answers with an error of this code."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code
