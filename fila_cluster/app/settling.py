"""Settle a delivery as its handler's end says, and bear what goes wrong with that: the handler has ended, nobody waits for an error."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from fila_cluster.app.decisions import Verdict
from fila_cluster.client.protocol.delivery import Delivery
from fila_proto_zmq.commands import Verb
from fila_proto_zmq.errors import AlreadySettledError, FilaError, LeaseExpiredError

PAUSES_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Between tries while the broker is away; the last one again and again. It gives up when the broker says that the lease has ended."""

Sleep = Callable[[float], Awaitable[Any]]

_log = logging.getLogger("fila_cluster.app")


async def settle(delivery: Delivery, verdict: Verdict, sleep: Sleep = asyncio.sleep) -> bool:
    """Settle; return whether it is confirmed. Tries again as long as the error is one that passes. Raises nothing but a cancellation.

    After an error that passes nothing is known: the first try may have counted. Then the next one finds the lease ended.
    """
    tries = 0
    while True:
        try:
            await _say(delivery, verdict)
        except (LeaseExpiredError, AlreadySettledError) as error:
            _log.warning(
                "message %s of %r: its lease had ended before the %s (%s); it is delivered again, unless an earlier try counted",
                delivery.id, delivery.queue, verdict.verb.name.lower(), error,
            )  # fmt: skip
            return False
        except FilaError as error:
            if not error.retryable:
                _log.error(  # the text says it all
                    "message %s of %r: the broker refused the %s: %s",
                    delivery.id, delivery.queue, verdict.verb.name.lower(), error,
                )  # fmt: skip
                return False
            if tries == 0:
                _log.warning(
                    "message %s of %r: the %s is not confirmed yet (%s); trying again",
                    delivery.id, delivery.queue, verdict.verb.name.lower(), error,
                )  # fmt: skip
            await sleep(PAUSES_S[min(tries, len(PAUSES_S) - 1)])
            tries += 1
        else:
            return True


async def _say(delivery: Delivery, verdict: Verdict) -> None:
    said: Any
    match verdict.verb:
        case Verb.ACK:
            said = delivery.ack()  # type: ignore[func-returns-value]  # an awaitable, of an asyncio client
        case Verb.NACK:
            said = delivery.nack(verdict.error)  # type: ignore[func-returns-value]
        case Verb.RETRY:
            said = delivery.retry(verdict.after_s, verdict.error)  # type: ignore[func-returns-value]
        case Verb.FAIL:
            said = delivery.fail(verdict.error)  # type: ignore[func-returns-value]
        case _:
            said = delivery.defer(verdict.after_s)  # type: ignore[func-returns-value]
    if inspect.isawaitable(said):
        await said
