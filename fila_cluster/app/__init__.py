"""Handlers: functions and coroutines that work on the messages of queues.

::

    app = App()

    @app.handler("orders", concurrency=8, retry=backoff(first=1, most=300, attempts=10), timeout=30)
    async def charge(order: Order, db: Annotated[Session, Depends(session)]) -> None: ...

``fila-cluster work module:app`` runs it in processes; ``app.run()`` in this one. The message of a handler that returns is
acked. After an exception it is nacked, or retried by the ``retry`` policy; :class:`RetryAfter`, :class:`Fail` and
:class:`Defer` are other outcomes. A payload that does not fit the handler's annotation is dead-lettered.

For tests, and for programs that have a client already (all of it public):

- ``app.queues``: the names of the queues that have handlers.
- ``app.run_until_idle(client) -> int``: blocks; handles all messages that are deliverable now, or enqueued meanwhile, with a
  :class:`~fila_cluster.Client` (or anything with its ``receive_any``); returns the number of deliveries. Functions run in the
  calling thread, coroutines in an event loop of the call. Messages that are due later stay: move the clock and call it again.
  After ``most`` deliveries (10,000) it raises :class:`RuntimeError`, as two handlers may enqueue for each other.
- ``await app.work_until_idle(client) -> int``: the same within an event loop. Functions run in the loop's thread with a
  ``Client``, and in threads with an ``AsyncClient``.
- ``async with app.opened() as work: verdict = await work.handle(delivery)``: one delivery of either client, settled. The
  :class:`Verdict` says how: ``verb``, ``error``, ``after_s``. App-wide dependencies live as long as the context.
- ``await app.work(client=…, stop=Stop())``: consume until ``stop.ask()``.
"""

from fila_cluster.app.application import App
from fila_cluster.app.calling import HandlerTimeoutError
from fila_cluster.app.decisions import Backoff, Defer, Fail, RetryAfter, Verdict, backoff
from fila_cluster.app.handlers import Call, CallNext, Depends, Handler, Middleware
from fila_cluster.app.payloads import PayloadError
from fila_cluster.app.serving import Stop
from fila_cluster.app.telemetry import Tally
from fila_cluster.app.work import Work

__all__ = [
    "App",
    "Backoff",
    "Call",
    "CallNext",
    "Defer",
    "Depends",
    "Fail",
    "Handler",
    "HandlerTimeoutError",
    "Middleware",
    "PayloadError",
    "RetryAfter",
    "Stop",
    "Tally",
    "Verdict",
    "Work",
    "backoff",
]
