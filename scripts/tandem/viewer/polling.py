"""What an open dashboard asks for again and again: its curves, or "nothing is new" (status 304) after reading a few documents.

The tag of an answer (ETag) is made of what the curves depend on: the newest step and the newest with metrics, the newest weights,
the held-out rounds, trainer starts and the run's condition.
"""

import hashlib

from starlette.responses import JSONResponse, Response

from shared.store.condition import OPEN_CONDITIONS, condition_of
from shared.store.views.dashboard import curves_depend_on
from shared.store.views.runs import policies_of_run
from tandem.viewer.dashboard import POLL_LIVE_S, chosen_policy, curves
from tandem.viewer.page_request import PageRequest
from tandem.viewer.pages import plain


async def curves_answer(request: PageRequest) -> Response:
    policies = await policies_of_run(request.store, request.run)
    policy = chosen_policy(request, policies)
    condition = (await condition_of(request.store)).condition.value
    newest = [await request.store.versions.newest(name) for name in policies]
    step = min((version.step for version in newest if version is not None), default=None)
    seen = (condition, step, request.run.starts.get(policy), await curves_depend_on(request.store, policy))
    tag = f'W/"{hashlib.sha256(repr((policy, *seen)).encode()).hexdigest()[:20]}"'
    if request.request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"etag": tag})
    _, charts = await curves(request, policy)
    current = {"row": {"step": step}, "poll_s": POLL_LIVE_S if condition in OPEN_CONDITIONS else 0, "charts": charts}
    return JSONResponse(plain(current), headers={"etag": tag})
