"""One process of ``fila-cluster work``: its settings are JSON, its last argument. It ends when it is asked to (SIGTERM), and
when its supervisor is gone: the other end of its socket is closed then."""

import asyncio
import os
import signal
import socket
import sys
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from fila_cluster.app import App, Stop
from fila_cluster.app.serving import StuckError
from fila_cluster.run.work import logs
from fila_cluster.run.work.loading import CannotLoadError, load
from fila_cluster.run.work.wire import Line, ProcessSettings, Serves, TallyReport, encode
from fila_proto_zmq.errors import FilaError

FAILED: Final = 1
STUCK: Final = 4
"""Exit codes: it could not start, or failed; a handler hangs in all its slots."""

COUNT_EVERY_S: Final = 1.0


def main() -> None:
    """Run the process; exit with one line about an error, if any."""
    logs.write_whole_lines()
    settings = msgspec.json.decode(sys.argv.pop(), type=ProcessSettings)  # popped: they are not the application's
    to_supervisor = socket.socket(fileno=settings.fd)
    to_supervisor.set_inheritable(False)  # programs that handlers start outlive this process, and must not keep it open
    try:
        app = load(settings.app, Path(settings.folder))
    except CannotLoadError as error:
        _fail(str(error))
    except BaseException:  # of the application's module
        traceback.print_exc()
        _fail(f"cannot import {settings.app}: see above")
    if settings.endpoint is not None:
        app.endpoint = settings.endpoint
    logs.set_up_logs("handlers", for_people=settings.for_people, pid=os.getpid())
    flush = logs.set_up_telemetry()
    try:
        asyncio.run(_work(app, settings, to_supervisor))
    except StuckError as error:
        _fail(f"{error}; another process takes over", STUCK)
    except (FilaError, ValueError) as error:
        _fail(f"{settings.app} cannot work: {error}")
    finally:
        flush()


def _fail(text: str, code: int = FAILED) -> None:
    print(f"fila-cluster work: {' '.join(text.split())}", file=sys.stderr, flush=True)
    sys.exit(code)


async def _work(app: App, settings: ProcessSettings, to_supervisor: socket.socket) -> None:
    stop, loop = Stop(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.ask)
    reader, writer = await asyncio.open_connection(sock=to_supervisor)

    def tell(line: Line) -> None:
        if not writer.is_closing():
            writer.write(encode([line]))

    async def watch() -> None:
        with suppress(OSError):
            await reader.read()  # the supervisor writes nothing: this is its end
        stop.asked.set()

    async def count() -> None:
        while True:
            await asyncio.sleep(COUNT_EVERY_S)
            tell(_counted(app))
            with suppress(OSError):
                await writer.drain()  # a supervisor that hangs gets no more lines

    helpers = [asyncio.create_task(watch()), asyncio.create_task(count())]
    try:
        await app.work(stop=stop, grace=settings.grace_s, ready=partial(tell, Serves(list(app.queues))), end_when_stuck=True)
    finally:
        for helper in helpers:
            helper.cancel()
        tell(_counted(app))
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def _counted(app: App) -> TallyReport:
    return TallyReport({handler.queue: handler.tally for handler in app.handlers})


if __name__ == "__main__":
    main()
