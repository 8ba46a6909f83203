"""Whether the gateway can serve: `/health`, for load balancers and container engines."""

from typing import Any

from sampler.mcp_docker.sessions.sessions import Sessions
from shared.sandbox import IsolationLevel

OK = 200
UNAVAILABLE = 503


def health_of(sessions: Sessions, level: IsolationLevel, is_draining: bool) -> tuple[int, dict[str, Any]]:
    """The HTTP status and the body. A gateway at its capacity is healthy: it is busy, and says so to new sessions.

    The reason of a failed start stays in the log: it quotes a server's stderr, and this page needs no token.
    """
    pool = sessions.pool
    status = "ok"
    if pool.last_failure:
        status = "tool servers do not start: see the log"
    if is_draining:
        status = "draining"
    report = {
        "status": status,
        "isolation": str(level),
        "sessions": len(sessions),
        "capacity": pool.capacity,
        "warm": pool.warm,
        "starting": pool.starting,
        "ending": pool.ending,
        "started": pool.num_started,
        "failed_starts": pool.num_failed,
        "refused_as_busy": pool.num_refused,
    }
    return OK if status == "ok" else UNAVAILABLE, report
