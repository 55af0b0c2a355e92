"""What is kept in memory has its bounds, whatever the backlog. The one checker that looks inside: a size cannot be seen from outside."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.run import Run

RECORD_BYTES_MAX = 2000
"""A message here, and what a lane keeps with it: a bound may be passed by the last one."""
PAGE_BYTES_MAX = 200_000
"""One answer here."""


def check(run: "Run") -> None:
    """Look at workers and clients now."""
    bound = run.buffer_bytes
    for worker in run.cluster.workers:
        if worker.host is None or not worker.resting:
            continue
        for shard in worker.host.shards.values():
            kept = sum(len(record) for lane in shard.lanes.values() for _, record in lane.buffered() if record)
            if kept > bound + RECORD_BYTES_MAX:
                run.history.fail(
                    "memory", f"shard {shard.index} keeps {kept} bytes of pending messages, its bound is {bound}"
                )
    _check_unread(run)
    for programs in run.clients:
        session = programs.client._session
        session._calls.check()
        over = [call for way in session.routes.ways for call in way.held.values() if call.done]
        if len(over) > 20:
            run.history.fail("memory", f"{programs.process.name} keeps {len(over)} calls that are over")


def _check_unread(run: "Run") -> None:
    """What lies in the router for clients that do not read, in its pipes and held back, is bounded for each of them."""
    process = run.cluster.routers[0]  # the peers are at this one
    router = process.core
    if router is None or not process.resting:
        return
    bound = run.options.router_limits.client_unread_max
    held = {connection.name: connection.held_bytes for connection in router.unread.waiting}
    for peer in run.peers:
        connection = peer.socket.connection
        if connection is not None and connection.router.peers.get(connection.identity) is connection:
            kept = held.get(connection.identity, 0) + sum(len(part) for parts in connection.backlog for part in parts)
            if kept > bound + PAGE_BYTES_MAX:
                run.history.fail(
                    "memory", f"the router keeps {kept} bytes for {peer.name}, which does not read; its bound is {bound}"
                )
