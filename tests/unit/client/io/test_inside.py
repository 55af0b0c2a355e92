"""The link to a broker in the same process."""

import asyncio
import gc
import math
import os
import threading
import weakref

import pytest

from fila_cluster import AsyncClient, Client
from fila_cluster.client.io import inside
from fila_cluster.client.requests.endpoints import parse_endpoints
from fila_cluster.errors import FilaError, InvalidArgumentError
from fila_cluster.testing import broker
from tests.support.cluster.cluster import PATIENCE_S


def forget(clients: list) -> None:
    clients.clear()
    gc.collect()


def test_a_name_is_read_from_the_endpoint() -> None:
    (endpoint,) = parse_endpoints("memory://a.b_c-1")
    assert endpoint.inside == "a.b_c-1"
    assert parse_endpoints("tcp://127.0.0.1:1")[0].inside == ""


@pytest.mark.parametrize("text", ["memory://", "memory://" + "x" * 101, "memory://ä", "memory://a,memory://b"])
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="memory://"):
        parse_endpoints(text)


@pytest.mark.usefixtures("nothing_is_left_behind")
def test_clients_leave_no_descriptor_behind() -> None:
    async def use(endpoint: str) -> None:
        async with AsyncClient(endpoint) as client:
            await client.list_queues()

    with broker() as fila:
        fila.create_queue("q")
        for _ in range(3):
            with Client(fila.endpoint) as client:
                client.enqueue("q", b"x")
            asyncio.run(use(fila.endpoint))
    del client


def test_a_client_that_is_forgotten_is_no_inhabitant() -> None:
    with broker("census") as fila:
        assert len(inside.inhabitants("census")) == 1
        clients = [Client(fila.endpoint)]
        assert len(inside.inhabitants("census")) == 2
        gone = weakref.ref(clients[0])
        with pytest.warns(ResourceWarning, match="never closed"):
            forget(clients)
        assert gone() is None
        assert len(inside.inhabitants("census")) == 1
    assert inside.find("census") is None


def test_later_brokers_never_begin_earlier() -> None:
    with broker() as fila:
        fila.clock.advance(1000)
        end = fila._memory.now()  # type: ignore[union-attr]
    assert inside.earliest() >= end
    with broker() as later:
        assert later._memory.now() >= end  # type: ignore[union-attr]


def test_a_client_without_a_loop_has_nothing_to_do() -> None:
    with broker("idle") as fila:

        async def leave() -> AsyncClient:
            client = AsyncClient(fila.endpoint)
            await client.list_queues()
            return client

        clients = [asyncio.run(leave())]
        assert clients[0]._io.due_at() == math.inf
        fila.clock.advance(60)  # it is not waited for
        with pytest.warns(ResourceWarning, match="never closed"):
            forget(clients)


def test_the_child_of_a_fork_has_no_broker() -> None:
    with broker("parent") as fila:
        fila.create_queue("q")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = _told_in_child(fila)
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        fila.enqueue("q", b"x")
        fila.assert_pending("q", 1)


def _told_in_child(fila: Client) -> int:
    """0 if both clients are refused: the parent's, and one of the child's own."""
    for client, text in ((fila, "before the fork"), (Client("memory://parent"), "no broker memory://parent")):
        try:
            client.list_queues()
        except FilaError as error:
            if text not in str(error):
                return 2
        else:
            return 3
    return 0


def test_a_thread_that_waits_wakes_up_when_frames_come() -> None:
    """In real time: the thread sleeps on the link's descriptor."""
    with broker() as fila:
        fila.create_queue("q")
        taken: list[bytes] = []
        waits = threading.Event()

        def receive() -> None:
            with Client(fila.endpoint) as client:
                client.list_queues()
                waits.set()
                for delivery in client.receive("q", wait=3600):
                    taken.append(delivery.payload)
                    delivery.ack()

        thread = threading.Thread(target=receive)
        thread.start()
        assert waits.wait(PATIENCE_S)
        fila.enqueue("q", b"x")
        thread.join(PATIENCE_S)
        assert taken == [b"x"]
