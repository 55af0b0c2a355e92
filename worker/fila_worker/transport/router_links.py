"""The links to all routers of a cluster, and the way of each frame.

An answer goes by the link of its request, and a delivery by that of its subscription. The router with the token bank gets the
requests for tokens. Messages between shards go by one link, whose router forwards them: this host's, or the next live one.
Frames for a router that is away are dropped, and the worker registers there when it is back.
"""

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final, get_args

import psutil
from msgspec.structs import replace

from fila_proto_zmq.commands import BankLease, ChangesConfig, Park, Pulse, Tokens
from fila_proto_zmq.errors import FilaError
from fila_worker.core.effects import ANY_LINK, Answer, DirectReply, Effect, Post
from fila_worker.log.leadership import Proof
from fila_worker.process.config_copies import CONFIG_OWNER
from fila_worker.process.shard_process import ShardProcess
from fila_worker.replication.bank_lender import BankLender, RouterView
from fila_worker.settings import WorkerSettings
from fila_worker.transport.direct_clients import DirectClients
from fila_worker.transport.link import Intake, RouterSocket

PULSE_MS: Final = 250
"""The interval of pulses.

While the only router is away, a pulse waits for the connection. A restart takes longer than this interval, so one reaches the
router at once when it is back.
"""
APART_MS: Final = 1000
"""How long all other hosts' routers must be silent, beyond each one's silence: a step of the clock silences all."""
LINKS_MAX: Final = 64
"""Hosts that come and go with new addresses leave a link each."""
_CHANGES: Final = frozenset(command.opcode for command in get_args(ChangesConfig))


class RouterLinks:
    """The worker's side of the wires to the routers, the own host's first."""

    def __init__(
        self,
        settings: WorkerSettings,
        host: ShardProcess,
        clients: DirectClients,
        doors: list[str],
        steady_ms: Callable[[], int],
    ) -> None:
        """``clients``: those at the client socket, at the endpoints ``doors``. ``steady_ms``: a clock that is never set."""
        self._open = partial(RouterSocket, settings, host, clients, doors)
        self._endpoints = [settings.router, *settings.other_routers]
        self.all = [self._open(number, endpoint) for number, endpoint in enumerate(self._endpoints)]
        alone = len(self.all) == 1 and settings.replication is None
        self._one = self.all[0] if alone else None
        """The only link. None on a replicated log: a lone router may get company, and holds the bank on lease."""
        for _ in self.all[1:]:
            host.add_link()
        self._host = host
        self._clients = clients
        self._process = psutil.Process()
        self._next_pulse_ms = 0
        self._pulsed_keys = 0
        """The version of the API keys of shard 0 in the last pulse. A change is sent to the routers at once."""
        self._turns = 0
        self.intake = Intake()
        self._bank: RouterSocket | None = self._one
        """The link whose router holds the token bank."""
        self._bank_epoch = 0
        self._steady_ms = steady_ms
        silence_ms = None if settings.replication is None else settings.replication.leadership.silence_ms
        self._lender = None if silence_ms is None else BankLender(silence_ms)
        self._alone_since_ms: int | None = None
        """Since when no router of another host has sent a frame, by the clock that is never set."""
        if self._one is not None:
            self._one.has_bank = True

    def join(self, routers: Collection[str], now_ms: int) -> list[int]:
        """Make the missing links to routers; return the descriptors of the new ones. A link stays when its router is gone."""
        fresh = [endpoint for endpoint in sorted(routers) if endpoint not in self._endpoints]
        descriptors = []
        for endpoint in fresh[: LINKS_MAX - len(self.all)]:
            link = self._open(len(self.all), endpoint)
            self._endpoints.append(endpoint)
            self.all.append(link)
            self._host.add_link()
            link.register(now_ms)
            descriptors.append(link.descriptor)
        return descriptors

    def apart(self, now_ms: int) -> bool:
        """Return whether the other hosts' routers, if any, have sent nothing for long. Call it once a second."""
        others = self.all[1:]
        if not others or any(link.lives(now_ms) for link in others):
            self._alone_since_ms = None
            return False
        steady_ms = self._steady_ms()
        if self._alone_since_ms is None:
            self._alone_since_ms = steady_ms
        return steady_ms - self._alone_since_ms >= APART_MS

    # --- frames in ----------------------------------------------------------------------------------------------------

    @property
    def descriptors(self) -> list[int]:
        """Readable when something has happened at a socket."""
        return [link.descriptor for link in self.all]

    @property
    def has_more(self) -> bool:
        """Whether frames may wait that no descriptor shows: ask it before each wait."""
        if self._one is not None:
            return self._one.has_more
        more = False
        for link in self.all:  # each is asked, or its frames would be missed
            more = link.has_more or more
        return more

    def woken(self, readable: Collection[int]) -> None:
        """Note which descriptors are readable."""
        if (one := self._one) is not None:
            one.ready = one.descriptor in readable or not one.drained
            return
        for link in self.all:
            link.ready = link.descriptor in readable or not link.drained

    def look_at_all(self) -> None:
        """Read from all links in the next turn."""
        for link in self.all:
            link.ready = True

    def in_line(self) -> list[RouterSocket]:
        """Return the links to read from in this turn, with their shared ``intake``: another one is first in each turn."""
        if self._one is not None:
            if not self._one.ready:
                return []
            self.intake.begin_turn()
            return self.all
        self.intake.begin_turn()
        self._turns += 1
        first = self._turns % len(self.all)
        return [link for link in self.all[first:] + self.all[:first] if link.ready]

    @property
    def drained(self) -> bool:
        """Whether no more frames waited when frames were last received."""
        return self._one.drained if self._one is not None else all(link.drained for link in self.all)

    # --- frames of the worker itself ----------------------------------------------------------------------------------

    def register(self, now_ms: int) -> None:
        """Offer this worker's shards to all routers."""
        for link in self.all:
            link.register(now_ms)

    def tend(self, now_ms: int) -> None:
        """Register again what has changed, pulse, and see who holds the token bank. Call it in each turn."""
        if self._one is not None:
            self._one.register_changes(now_ms)
        else:
            for link in self.all:
                link.register_changes(now_ms)
            self._look_for_bank(now_ms)
        if now_ms >= self._next_pulse_ms or (self._one is None and self._host.config.keys_version != self._pulsed_keys):
            self._next_pulse_ms = now_ms + PULSE_MS
            self._pulse(now_ms)

    def _pulse(self, now_ms: int) -> None:
        clients, rss_bytes = self._clients, self._process.memory_info().rss
        stored = self._pulsed_keys = self._host.config.keys_version
        primary, lent = self._primary(now_ms), self._lend(now_ms)
        for link in self.all:
            acts = clients.audit.take() if link is primary else []
            bank = lent[1] if lent is not None and lent[0] == link.number else None
            known = clients.keys_version(link.number)
            pulse = Pulse(rss_bytes, self._host.queues, clients.clients, clients.frames, acts, known, bank, stored)
            link.pulse(pulse, now_ms)

    def _lend(self, now_ms: int) -> tuple[int, BankLease] | None:
        if self._lender is None:
            return None
        routers = [RouterView(link.lives(now_ms), link.pulsed.at_ms, link.pulsed.bank) for link in self.all]
        steady_ms = self._steady_ms()  # before the proof's age, which so is never taken for younger than it is
        return self._lender.lend(bank_proof(self._host), routers, steady_ms)

    def _look_for_bank(self, now_ms: int) -> None:
        """Begin a new session with the bank when another router holds it, or no router does: all earlier grants are void."""
        bank: RouterSocket | None = None
        for link in self.all:
            if link.pulsed.bank > (0 if bank is None else bank.pulsed.bank) and link.lives(now_ms):
                bank = link
        epoch = 0 if bank is None else bank.pulsed.bank
        if bank is self._bank and epoch == self._bank_epoch:
            return
        self._bank, self._bank_epoch = bank, epoch
        for link in self.all:
            link.has_bank = link is bank
        self._host.new_session(now_ms)

    def _primary(self, now_ms: int) -> RouterSocket:
        """Return the first live link."""
        if self._one is None:
            for link in self.all:
                if link.lives(now_ms):
                    return link
        return self.all[0]

    def park(self, parks: dict[str, int], now_ms: int) -> set[tuple[int, int]]:
        """Ask all routers to park throttle keys everywhere. Return the requests to the live ones, which confirm."""
        asked = [(link, link.park(parks)) for link in self.all]
        awaited = asked if self._one is not None else [each for each in asked if each[0].lives(now_ms)]
        return {(link.number, request) for link, request in awaited or asked}

    def take_confirmed(self) -> list[tuple[int, int]]:
        """Return the requests to park that were confirmed, once."""
        return [(link.number, request) for link in self.all for request in link.take_confirmed()]

    def leave(self) -> None:
        """Ask all routers to send nothing more here."""
        for link in self.all:
            link.leave()

    def left(self, now_ms: int) -> bool:
        """Whether all routers that live have confirmed that they send nothing more here."""
        return all(link.left or (self._one is None and not link.lives(now_ms)) for link in self.all)

    # --- effects ------------------------------------------------------------------------------------------------------

    def send(self, effects: Iterable[Effect], now_ms: int) -> None:
        """Send a committed turn's effects."""
        if self._one is not None:
            self._one.send(effects)
            return
        for effect in effects:
            for link in self._ways(effect, now_ms):
                link.send((effect,))
            if isinstance(effect, Answer) and effect.opcode in _CHANGES and not isinstance(effect.reply, FilaError):
                self._tell_others(effect)

    def _ways(self, effect: Effect, now_ms: int) -> list[RouterSocket]:
        """Return the links by which an effect goes."""
        if isinstance(effect, Post):
            if isinstance(effect.command, Tokens):
                return [] if self._bank is None else [self._bank]
            return self.all if isinstance(effect.command, Park) else [self._primary(now_ms)]
        if isinstance(effect, DirectReply):
            return []  # its client is not at a router
        number = effect.call.link if isinstance(effect, Answer) else effect.link
        return self.all if number == ANY_LINK else [self.all[number]]

    def _tell_others(self, change: Answer) -> None:
        """Send a change of the runtime config to the other routers, as if they had asked for it."""
        note = Answer(replace(change.call, request=0), change.opcode, change.reply)
        for link in self.all:
            if link.number != change.call.link:
                link.send((note,))

    def close(self) -> None:
        """Send what waits, for a second at most, and close the sockets."""
        for link in self.all:
            link.close()


def bank_proof(host: ShardProcess) -> Proof | None:
    """Return the proof that this process may lend the token bank: it leads shard 0 on a replicated log."""
    slot = host.slots.get(CONFIG_OWNER)
    return None if slot is None else slot.proof()
