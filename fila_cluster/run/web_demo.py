"""A cluster of its own with a life to look at on the dashboard: three tenants, a limit, failures, a schedule, a queue with partitions.

The supervisor has the main thread, so that signals stop it as they stop ``up``; the programs that use the broker have another.
What both make is in a temporary directory.
"""

import asyncio
import os
import signal
import tempfile
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from fila_cluster.client import AsyncClient, AsyncDelivery, Message
from fila_cluster.errors import FilaError
from fila_cluster.run.config.settings import Address, Dashboard, LimitSettings, Server, Settings, Telemetry
from fila_cluster.run.supervisor.endpoints import IN_DATA_DIR
from fila_cluster.run.supervisor.up import up
from fila_process.parent import shut_out_signals

FREE_PORT: Final = Address("127.0.0.1", 0)
WORKERS: Final = 2
MAIL, CLICKS, REPORTS = "mail", "clicks", "reports"
PROVIDER: Final = "mail-provider"
RATE, BURST = 30, 10
"""Of the provider: more than the tenants send in the long run, and less than the busy one sends at a time."""
BUSY: Final = "acme"
TENANTS: Final = (BUSY, "globex", "initech")
WAVE: Final = 200
WAVE_S: Final = 15.0
"""The busy tenant sends a wave; it waits for the limit, and the mail of the others goes past it."""
TURN_S: Final = 0.25
"""How often the other programs send one message of each tenant."""
BAD_EACH: Final = 25
"""Each such mail has an address that does not exist."""
ATTEMPTS: Final = 2
REPORT_S: Final = 5.0
AGAIN_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class WebDemo:
    """Where to look, and for how long."""

    dashboard: str
    endpoint: str
    seconds: float


def show(seconds: float, announce: Callable[[WebDemo], None]) -> int:
    """Run the demo for so many seconds, or until a signal; return the exit code. Raises ``CannotStartError``."""
    with tempfile.TemporaryDirectory(prefix="fila-demo-") as directory:
        programs: list[_Programs] = []

        def began(listen: Address, dashboard: str | None, workers: int) -> None:
            assert dashboard is not None
            announce(WebDemo(dashboard, listen.endpoint, seconds))
            programs.append(_Programs(listen.endpoint, seconds))

        code = up(_settings(Path(directory)), IN_DATA_DIR, insecure=False, announce=began)
        failures = [failure for each in programs if (failure := each.stop())]
    if failures:
        raise failures[0]
    return code


def _settings(directory: Path) -> Settings:
    """Return settings that no file and no variable of the environment changes."""
    return Settings.model_construct(
        server=Server(listen_addr=FREE_PORT, data_dir=directory / "data", workers=WORKERS),
        dashboard=Dashboard(listen_addr=FREE_PORT),
        limits=LimitSettings(min_free_disk_bytes=0),
        telemetry=Telemetry(log_level="warning"),
    )


class _Programs:
    """The programs that use the broker, in a thread. The supervisor is asked to stop when they end."""

    def __init__(self, endpoint: str, seconds: float) -> None:
        self._endpoint, self._seconds = endpoint, seconds
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="programs")
        self._thread.start()

    def stop(self) -> Exception | None:
        """End them, and wait for that; return why they ended before, if it was an error."""
        with suppress(RuntimeError):  # they have ended, and closed their loop
            self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        return self._failure

    def _run(self) -> None:
        shut_out_signals()  # of this thread: they are the supervisor's
        try:
            self._loop.run_until_complete(self._live())
        except Exception as error:
            self._failure = error
        finally:
            self._loop.close()
            os.kill(os.getpid(), signal.SIGTERM)

    async def _live(self) -> None:
        """Use the broker until the time is up or :meth:`stop`."""
        async with AsyncClient(self._endpoint) as client:
            await _prepare(client)
            working: asyncio.Future[Any] = asyncio.gather(
                _waves(client), _trickle(client), *(_consume(client, *each) for each in _WORK.items())
            )
            ended: asyncio.Future[Any] = asyncio.ensure_future(asyncio.wait_for(self._ended.wait(), self._seconds))
            done, _ = await asyncio.wait([working, ended], return_when=asyncio.FIRST_COMPLETED)
            for each in (working, ended):
                each.cancel()
            await asyncio.gather(working, ended, return_exceptions=True)
            if working in done:
                working.result()


async def _prepare(client: AsyncClient) -> None:
    await client.create_queue(MAIL, max_attempts=ATTEMPTS)
    await client.create_queue(CLICKS, partitions=WORKERS)
    await client.create_queue(REPORTS)
    await client.set_throttle(PROVIDER, rate=RATE, burst=BURST)
    await client.put_schedule("report", REPORTS, b"", every=REPORT_S)


async def _again(step: Callable[[], Awaitable[object]]) -> None:
    """Do a step until it succeeds, as programs do that outlive a restart of the broker."""
    while True:
        try:
            await step()
        except FilaError as error:
            if not error.retryable:
                raise
            await asyncio.sleep(AGAIN_S)
        else:
            return


def _mail(tenant: str, number: int) -> Message:
    to = "nobody" if number % BAD_EACH == 0 else f"customer-{number}"
    return Message(b"Dear customer", {"to": f"{to}@{tenant}.example"}, fairness_key=tenant, throttle_keys=[PROVIDER])


async def _waves(client: AsyncClient) -> None:
    while True:
        wave = [_mail(BUSY, number) for number in range(WAVE)]
        await _again(partial(client.enqueue_many, MAIL, wave))
        await asyncio.sleep(WAVE_S)


async def _trickle(client: AsyncClient) -> None:
    number = 0
    while True:
        number += 1
        mails = [_mail(tenant, number) for tenant in TENANTS if tenant != BUSY]
        clicks = [Message(b"", fairness_key=tenant) for tenant in TENANTS]
        await _again(partial(client.enqueue_many, MAIL, mails))
        await _again(partial(client.enqueue_many, CLICKS, clicks))
        await asyncio.sleep(TURN_S)


async def _send(delivery: AsyncDelivery) -> None:
    if delivery.headers["to"].startswith("nobody@"):
        await delivery.nack("550 there is no such mailbox")
    else:
        await delivery.ack()


async def _done(delivery: AsyncDelivery) -> None:
    await delivery.ack()


_WORK: Final[dict[str, Callable[[AsyncDelivery], Awaitable[None]]]] = {MAIL: _send, CLICKS: _done, REPORTS: _done}
"""What a consumer does with the deliveries of each queue."""


async def _consume(client: AsyncClient, queue: str, work: Callable[[AsyncDelivery], Awaitable[None]]) -> None:
    async def take() -> None:
        async with client.consume(queue, prefetch=20) as deliveries:
            async for delivery in deliveries:
                await work(delivery)

    await _again(take)
