"""Scripts that mean harm, on a real cluster: enqueueing works as if they were not there, and other queues notice nothing."""

import pytest

from fila_cluster import Client, Message
from fila_cluster.errors import LuaCompilationError
from tests.support.cluster.cluster import Cluster

HOSTILE = {
    "loops for ever": "while true do end",
    "loops inside pcall": "while true do pcall(function() while true do end end) end",
    "loops in an error handler": "xpcall(function() while true do end end, function() while true do end end)",
    "loops in a finalizer": "setmetatable({}, {__gc = function() while true do end end}); for i = 1, 1e9 do local t = {} end",
    "eats memory": "local t = {} for i = 1, 1e9 do t[i] = ('x'):rep(1000) .. i end",
    "doubles a string": "local s = 'x' while true do s = s .. s end",
    "raises": "error('boom')",
    "raises a table that lies": "error(setmetatable({}, {__tostring = function() while true do end end}))",
    "opens a file": "io.open('/etc/passwd')",
    "runs a command": "os.execute('touch /tmp/escaped')",
    "loads code": "load('return 1')()",
    "reaches for the host": "python.eval('1')",
    "string.rep bomb": "return {fairness_key = ('x'):rep(1e9)}",
    "many string.rep bombs": "for i = 1, 1e9 do local s = ('x'):rep(1e5) end",
    "pattern bomb": "return {fairness_key = ('a'):rep(5000):match('.-.-.-.-.-.-b')}",
    "gsub bomb": "local s = ('a'):rep(20000) return {fairness_key = s:gsub('.-b', '')}",
    "sorts for ever": "table.sort(setmetatable({}, {__len = function() return 1e9 end, __index = rawlen}))",
    "moves for ever": "table.move({}, 1, 1e9, 2)",
    "escapes through a metatable": "getmetatable('').__index = function() while true do end end; local s = ('x').y",
    "coroutines": "coroutine.wrap(function() while true do end end)()",
    "recurses": "local function f() return f() + 1 end; f()",
    "returns nonsense": "return {fairness_key = 7, weight = 'x', throttle_keys = 'no', priority = 1e99, cost = -1, delay_ms = 0/0}",
    "returns a trap": "return setmetatable({}, {__index = function() while true do end end})",
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_enqueueing_goes_on_by_the_options_and_defaults(shared_cluster: Cluster, queue: str, body: str) -> None:
    with shared_cluster.client() as client:
        client.delete_queue(queue, force=True)
        client.create_queue(queue, on_enqueue=f"function on_enqueue(msg) {body} end")
        client.create_queue(f"{queue}-beside", on_enqueue="function on_enqueue(msg) return {fairness_key = 'fine'} end")
        assert len(client.enqueue_many(queue, [Message(b"%d" % number, fairness_key="chosen") for number in range(8)])) == 8
        client.enqueue(f"{queue}-beside", b"beside")
        keys = {key.fairness_key: key.pending for key in client.queue_stats(queue).keys}
        assert keys == {"chosen": 8}
        assert [key.fairness_key for key in client.queue_stats(f"{queue}-beside").keys] == ["fine"]
        drain(client, queue)
        client.delete_queue(f"{queue}-beside")


def drain(client: Client, queue: str) -> None:
    deliveries = client.receive(queue, 10, wait=60)
    assert [delivery.payload for delivery in deliveries] == [b"%d" % number for number in range(8)]
    client.ack(deliveries)


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("function on_enqueue(msg)\n  return {\nend", ":3:"),
        ("while true do end", "on_enqueue"),
        ("x = 1", "on_enqueue"),
        ("local s = ('x'):rep(1e9) function on_enqueue() end", "memory"),
    ],
    ids=["syntax", "loops while it is compiled", "defines nothing", "eats memory while it is compiled"],
)
def test_what_does_not_compile_leaves_no_queue(shared_cluster: Cluster, script: str, line: str) -> None:
    with shared_cluster.client() as client:
        with pytest.raises(LuaCompilationError, match=line):
            client.create_queue("never", on_enqueue=script)
        assert client.list_queues("never") == []
