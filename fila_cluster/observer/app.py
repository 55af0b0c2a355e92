"""What the dashboard's address answers, as an ASGI application that others can be mounted into."""

from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from fila_cluster.observer.half_hour import half_hour, nothing_known
from fila_cluster.observer.prometheus import CONTENT_TYPE, exposition
from fila_cluster.observer.samples import families
from fila_cluster.observer.watch import Watch
from fila_cluster.observing.history import History

_FRESH: Final = {"Cache-Control": "no-store"}

_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>fila-cluster</title>
<h1>fila-cluster</h1>
<p>{why}</p>
<ul>
<li><a href="metrics">/metrics</a>: all counters, for Prometheus</li>
<li><a href="history">/history</a>: the last half hour, as JSON; of one queue with <code>?queue=NAME</code></li>
<li><a href="readyz">/readyz</a>: whether every shard serves</li>
<li><a href="healthz">/healthz</a>: whether this process lives</li>
</ul></html>
"""

NOT_INSTALLED: Final = "The dashboard is not installed: <code>pip install 'fila-cluster[dashboard]'</code>, and start again."
NOT_LOADED: Final = (
    "The dashboard is installed, and can't be loaded; the log says why (<code>dashboard.left_out</code>). "
    "<code>pip install --upgrade 'fila-cluster[dashboard]'</code>, and start again."
)
"""Why there is none, as HTML."""


def application(watch: Watch, history: History, no_dashboard: str | None = NOT_INSTALLED) -> Starlette:
    """The pages, over what a watch sees and what is remembered of it.

    ``no_dashboard``: why there is none, which ``/`` says; None: there is one, and it takes that place.
    """

    async def index(_: Request) -> Response:
        return HTMLResponse(_PAGE.format(why=no_dashboard))

    def metrics(_: Request) -> Response:  # in a thread: with thousands of queues it takes a second, and nobody shall wait
        return Response(exposition(families(watch.latest)), headers=_FRESH | {"Content-Type": CONTENT_TYPE})

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n", headers=_FRESH)

    async def readyz(_: Request) -> Response:
        await watch.look_now()
        reasons = watch.obstacles()
        answer = {"ready": not reasons, "reasons": reasons}
        return JSONResponse(answer, status_code=503 if reasons else 200, headers=_FRESH)

    async def remembered(request: Request) -> Response:
        queue = request.query_params.get("queue")
        answer = half_hour(history, queue, watch.latest)
        if answer is None:
            return JSONResponse({"error": nothing_known(queue or "")}, status_code=404, headers=_FRESH)
        return Response(msgspec.json.encode(answer), media_type="application/json", headers=_FRESH)

    pages = {"/metrics": metrics, "/history": remembered, "/healthz": healthz, "/readyz": readyz}
    if no_dashboard is not None:
        pages["/"] = index
    return Starlette(routes=[Route(path, page) for path, page in pages.items()])
