"""Guests of a guarded cluster: clients whose API keys allow little or not for long, and who ask for more than that.

A host, which may do everything, makes a guest's key, and perhaps grants it more or revokes it while the guest works. Others come with a
wrong key.
"""

import asyncio
from random import Random
from typing import TYPE_CHECKING

from fila_proto_zmq.commands import CreateKey, GrantKey, RevokeKey
from fila_proto_zmq.errors import InvalidArgumentError
from tests.simulation.actors.peers import WRONG, guesser
from tests.simulation.history import KeyLife
from tests.simulation.world.processes import BIRTH_MS

if TYPE_CHECKING:
    from tests.simulation.actors.programs import Programs
    from tests.simulation.run import Run

ALLOW: tuple[list[str], ...] = (
    ["produce:{}"], ["consume:{}"], ["produce:{}", "consume:{}"], ["admin:{}", "consume:{}*"], ["consume:*"], ["produce:q*", "consume:q*"], [],
)  # fmt: skip
"""What a key may be made with; ``{}`` is a queue."""
ASKS = (
    "enqueue", "enqueue", "enqueue", "receive", "receive", "consume", "stats", "browse", "pause", "resume", "purge", "update", "config",
)  # fmt: skip
PAUSES_S = (0.0, 0.05, 0.2, 0.6, 1.5)
"""Between two calls of a guest."""
TRIES_MAX = 20


def visit(run: "Run", host: "Programs", random: Random, queue: str) -> None:
    """Let a guest come; or somebody who tries wrong keys."""
    kind = random.random()
    if kind < 0.2:
        guesser(run, random)
    elif kind < 0.35:
        guest = run.new_guest(WRONG, KeyLife([], 0, end_began_us=0, end_confirmed_us=0))
        guest.process.spawn(_stay(run, guest, random))
    else:
        host.process.spawn(_host(run, host, random, queue))


async def _host(run: "Run", host: "Programs", random: Random, queue: str) -> None:
    """Make a key, give it to a guest, and change or end it while the guest is there."""
    name, allow = f"key-{random.getrandbits(30):x}", [text.format(queue) for text in random.choice(ALLOW)]
    now_us = run.world.now_us
    expires_us = random.choice([None, None, now_us + 1_000_000, now_us + 4_000_000])
    expires_ms = 0 if expires_us is None else BIRTH_MS + expires_us // 1000
    record = await host.command("create_key", "", CreateKey(name, allow, expires_ms))
    if not record.ok:
        return
    life = KeyLife(allow, run.world.now_us, expires_us)
    guest = run.new_guest(record.value.secret, life)
    guest.process.spawn(_stay(run, guest, Random(random.getrandbits(32))))
    await asyncio.sleep(random.choice([0.1, 0.6, 2.0, 4.0]))
    change = random.choice(["revoke", "revoke", "grant", "nothing"])
    if change == "grant":
        await _grant(host, name, random.choice(["produce:{}", "consume:{}", "admin:{}"]).format(queue), life)
    elif change == "revoke":
        await _revoke(run, host, name, life)


async def _grant(host: "Programs", name: str, permission: str, life: KeyLife) -> None:
    """Add a permission. The call is noted as it begins: from then on the key may have it."""
    number = len(host.history.calls)
    asking = asyncio.ensure_future(host.command("grant_key", "", GrantKey(name, [permission])))
    await asyncio.sleep(0)
    life.grants.append((permission, host.history.calls[number]))
    await asking


async def _revoke(run: "Run", host: "Programs", name: str, life: KeyLife) -> None:
    life.end_began_us = run.world.now_us
    tried = False
    for _ in range(TRIES_MAX):
        record = await host.command("revoke_key", "", RevokeKey(name))
        if record.ok:
            life.end_confirmed_us = run.world.now_us
            return
        unknown = isinstance(record.error, InvalidArgumentError)
        if host.client.closed or (unknown and tried):  # an earlier try did it, or this router does not have the key yet
            return
        tried = tried or not unknown
        await asyncio.sleep(0.3)


async def _stay(run: "Run", guest: "Programs", random: Random) -> None:
    """Ask for this and that, allowed or not."""
    names = sorted(name for name in run.history.queues if not name.startswith("brief"))
    for _ in range(random.choice([3, 8, 14])):
        if guest.quiet:
            return
        ask = random.choice(ASKS)
        if ask == "list":
            await guest.call("list_queues", "", guest.client.list_queues)
        else:
            guest.process.spawn(getattr(guest, ask)(Random(random.getrandbits(32)), random.choice(names)))
        await asyncio.sleep(random.choice(PAUSES_S))
