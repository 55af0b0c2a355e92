"""Clients in the child of a fork: a clear error at once, and nothing hangs."""

import subprocess
import sys

import pytest

from fila_proto_zmq.codec import encode_delivery
from fila_proto_zmq.commands import Delivered, Receive, Subscribe, Subscribed
from tests.support.cluster.cluster import PATIENCE_S
from tests.unit.client.peer import Sent, batch, broker, usual_answer

PROGRAM = """
import asyncio, os, sys, threading, warnings
from fila_cluster import AsyncClient, Client
from fila_cluster.errors import FilaError

warnings.simplefilter("error")
warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
blocking, used_blocking = Client(sys.argv[1]), Client(sys.argv[1])
asynchronous, used = AsyncClient(sys.argv[1]), AsyncClient(sys.argv[1])
(held,) = used_blocking.receive("q")
consumer = used_blocking.consume("q")
first = next(consumer)

async def use():
    (delivery,) = await used.receive("q")
    consuming = used.consume("q")
    return delivery, consuming, await anext(consuming)

loop = asyncio.new_event_loop()
async_held, async_consumer, async_first = loop.run_until_complete(use())

def refused(call):
    try:
        result = call()
        if asyncio.iscoroutine(result):
            asyncio.run(result)
    except FilaError as error:
        assert "before the fork" in str(error), error
    else:
        raise AssertionError("not refused")

async def all_of(call):
    return await call()

child = os.fork()
if child == 0:
    {child}
    warnings.simplefilter("ignore", ResourceWarning)  # sockets and loops of the parent, which are not closed here
    sys.exit(7)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
assert used_blocking.enqueue("q", b"x")
held.ack()
first.ack()
used_blocking.close()
blocking.close()
loop.run_until_complete(used.enqueue("q", b"x"))
for delivery in (async_held, async_first):
    loop.run_until_complete(delivery.ack())
loop.run_until_complete(used.close())
loop.run_until_complete(asynchronous.close())
loop.close()
print("done")
"""

CHILDREN = {
    "leaves them alone": "pass",
    "uses a blocking client": """
    refused(lambda: blocking.enqueue("q", b"x"))
    refused(lambda: used_blocking.receive("q", wait=60))
    refused(lambda: used_blocking.consume("q"))""",
    "uses an asyncio client": """
    async def enqueue(client): return await client.enqueue("q", b"x")
    async def consume(client): client.consume("q")
    for client in (asynchronous, used):
        refused(lambda: enqueue(client))
        refused(lambda: consume(client))""",
    "goes on to consume": """
    async def take(): return await anext(async_consumer)
    refused(lambda: next(consumer))
    refused(take)""",
    "settles": """
    async def ack(): await async_held.ack()
    refused(held.ack)
    refused(lambda: first.extend(5))
    refused(ack)""",
    "closes them": """
    consumer.close()
    blocking.close()
    used_blocking.close()
    asyncio.run(async_consumer.close())
    asyncio.run(asynchronous.close())
    asyncio.run(used.close())""",
    "drops them": """
    import gc
    warnings.simplefilter("ignore", ResourceWarning)
    del blocking, used_blocking, asynchronous, used, consumer, async_consumer, held, first, async_held, async_first
    gc.collect()""",
    "opens its own": """
    with Client(sys.argv[1]) as own:
        own.enqueue("q", b"x")
    async def enqueue():
        async with AsyncClient(sys.argv[1]) as own:
            await own.enqueue("q", b"x")
    asyncio.run(enqueue())""",
}


@pytest.mark.parametrize("child", CHILDREN)
def test_a_child_that(child: str) -> None:
    leases = iter(range(7, 1000))

    def answer(sent: Sent) -> object:
        if isinstance(sent.command, Receive):
            return Delivered(0, [batch(next(leases), 1)])
        if isinstance(sent.command, Subscribe):
            return Subscribed()
        return usual_answer(sent)

    with broker(answer) as peer:  # type: ignore[arg-type]
        original = peer._serve

        def serve(client: bytes, *parts: bytes) -> None:
            original(client, *parts)
            if isinstance(peer.seen[-1].command, Subscribe) and not peer.seen[-1].command.renew:
                pushed = encode_delivery("q", Delivered(peer.seen[-1].command.subscription, [batch(next(leases), 3)]))
                peer._socket.send_multipart([client, *pushed])

        peer._serve = serve  # type: ignore[method-assign]
        program = [sys.executable, "-c", PROGRAM.format(child=CHILDREN[child].strip()), peer.endpoint]
        result = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (result.returncode, result.stdout.strip(), result.stderr) == (0, "done", "")
