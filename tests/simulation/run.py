"""One run: a seed's cluster lives through its script, then it is healed, audited, restarted and audited again."""

import gc
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from random import Random
from typing import Any

from fila_proto_zmq.errors import FilaError
from fila_worker.core.model.component import InvariantBroken
from tests.simulation import checkers
from tests.simulation.actors import peers, restricted_clients
from tests.simulation.actors.clients import ClientProcess, RawPeer
from tests.simulation.actors.programs import Programs
from tests.simulation.crossings import counted
from tests.simulation.faults.faults import FAULTS_BY_NAME, endanger
from tests.simulation.faults.script import BEGIN_US, Step, draw_script
from tests.simulation.history import History, KeyLife
from tests.simulation.options import Options, draw
from tests.simulation.scaled import scaled_down
from tests.simulation.world.cluster import Cluster
from tests.simulation.world.hosts import HostedCluster
from tests.simulation.world.key_file import ADMIN
from tests.simulation.world.processes import in_place_of_the_kernel
from tests.simulation.world.queues import APART, draw_queues
from tests.simulation.world.world import Stuck, World

HEAL_US = 6_000_000
"""How long a healed cluster has until everybody must have what they can have, beside the loss of silent consumers if there were faults:
reconnecting, a new router's wait for its workers, and a heartbeat."""
LOOK_AGAIN_US = 3_000_000
"""Between two looks at what is not as it should be: it may be under way."""
LOOKS = 4
"""How often invariants and sizes are looked at while a script runs, at moments that the seed chooses."""
LIMIT_US, LATE_US = 1_500_000, 8_000_000
"""How long a lowered limit of a throttle key may be exceeded: usually, and if there are faults."""
PROOF_LOOK_US = 250_000
"""Between two looks at whether leaders of shards have proof that they are."""
AUDIT_US_MAX = 240_000_000
IDLE_US = 10_000_000
"""How long nothing happens at the end. Longer than a router remembers a call that nobody answers."""


@dataclass
class Result:
    """How a run ended. ``failures``: ``(checker, what it found)``."""

    options: Options
    steps: list[Step]
    failures: list[tuple[str, str]]
    story: list[str] = field(repr=False)
    counts: dict[str, int] = field(default_factory=dict)
    crossings: Counter[str] = field(default_factory=Counter)
    """How often which boundary was crossed (:mod:`crossings`), if that was asked for."""

    @property
    def digest(self) -> str:
        """The same for two runs that went the same way."""
        return blake2b("\n".join(self.story).encode(), digest_size=8).hexdigest()


class Run:
    """The world of one run, and who lives in it."""

    def __init__(self, options: Options, steps: list[Step]) -> None:
        self.options = options
        self.steps = steps
        self.world = World(options.seed)
        self.cluster = Cluster(self.world, options) if options.hosts is None else HostedCluster(self.world, options)
        self.history = History(self.world, self.cluster.shard_of)
        self.history.power_cuts = self.cluster.power_cuts
        self.history.deaths = self.cluster.supervisor.deaths
        self.clients: list[Programs] = []
        self.guests: list[Programs] = []
        """Clients whose API keys allow little, or not for long."""
        self.guarded = self.cluster.key_file is not None
        self.peers: list[RawPeer] = []
        self.buffer_bytes = options.shard_settings.buffer_bytes
        """The bound as it was asked for, whatever becomes of the settings."""
        self._clients_made = 0
        self._checks = self.world.random("when invariants are checked")
        self._checked: dict[int, tuple[str, int, int, int]] = {}
        """By shard, in which state its invariants were checked last: its worker, the life of it, its commits and its leases."""
        self.network = self.cluster.network
        self.network.taps.append(self.history.tap)
        self.network.arrivals.append(self.history.arrived)
        self.network.direct_taps.append(self.history.direct_tap)
        self.network.direct_arrivals.append(self.history.direct_arrived)
        self.places = checkers.Places(self.history)
        self.cluster.watch(self.places.committed)
        self.cluster.watch(self.history.committed)
        if options.features & {"in_flight", "concurrency"}:
            late_us = LATE_US if options.faults else LIMIT_US
            self.cluster.watch(checkers.Leased(self.history, late_us=late_us).committed)

    # --- clients --------------------------------------------------------------------------------------------------------

    def new_client(self, api_key: str = ADMIN) -> Programs:
        """Another program connects."""
        self._clients_made += 1
        process = ClientProcess(
            self.world,
            f"client-{self._clients_made}",
            self.options.timeout_s,
            self.options.work_us,
            self.options.client_limits,
            direct="direct" in self.options.features,
            api_key=api_key if self.guarded else "",
            fronts=self.cluster.fronts,
        )
        programs = Programs(process, self.history, self.options)
        self.history.clients.append(process)
        return programs

    def new_guest(self, api_key: str, life: KeyLife) -> Programs:
        """A client with an API key that others have made."""
        guest = self.new_client(api_key)
        self.guests.append(guest)
        self.history.keys[guest.process.name] = life
        return guest

    def replace_client(self, number: int) -> None:
        """A client is gone, and another comes."""
        self.clients[number] = self.new_client()

    @property
    def _settles_us(self) -> int:
        """How much longer than others a cluster of several hosts needs to come to rest."""
        return 0 if self.options.hosts is None else self.options.hosts.settles_us

    # --- phases ---------------------------------------------------------------------------------------------------------

    def live(self) -> None:
        """All of it."""
        self.cluster.start()
        self.clients = [self.new_client() for _ in range(self.options.clients)]
        self.history.queues.update(draw_queues(self.options, self.cluster.shard_of))
        self.world.run_until(200_000)
        self._create_queues()
        self.world.run_until(BEGIN_US)
        for step in self.steps:
            self.world.at(step.at_us, self._do, step)
        for _ in range(LOOKS):
            self.world.at(BEGIN_US + self._checks.randrange(self.options.span_us), checkers.now_and_then, self)
        if "partitions" in self.options.features:
            asking = checkers.Asking(self)
            for at_us in range(0, self.options.span_us + HEAL_US, checkers.LOOK_US):
                self.world.at(BEGIN_US + at_us, asking.look)
        if self.options.hosts is not None:
            for at_us in range(0, self.options.span_us, PROOF_LOOK_US):
                self.world.at(BEGIN_US + at_us, checkers.check_proofs, self)
        self.world.run_until(BEGIN_US + self.options.span_us)
        self._heal()
        checkers.healed(self)
        self._audit()
        self.history.clock_steps = self.cluster.clock_steps
        self.history.clocks_differ = self.cluster.clocks_differ
        checkers.audited(self)
        checkers.rested(self, self._rest())

    def _create_queues(self) -> None:
        first = self.clients[0]

        async def create() -> None:
            for queue, options in self._queues_in_order():
                await first.create(queue, options)
            if "concurrency" in self.options.features:
                await first.limit_concurrency(Random(f"{self.options.seed} first places"))

        first.process.spawn(create())

    def _queues_in_order(self) -> Iterable[tuple[str, dict[str, Any]]]:
        """Those that others name for their dead letters first."""
        return sorted(self.history.queues.items(), key=lambda item: "dead_letter" in item[1])

    def _do(self, step: Step) -> None:
        random = Random(step.number)
        if step.who < 0:
            self.world.tell("FAULT", step.what)
            FAULTS_BY_NAME[step.what](self, random)
            return
        programs = self.clients[step.who]
        names = sorted(self.history.queues)
        queue = random.choice([name for name in names if not name.startswith(APART)])
        if step.what == "guest":
            restricted_clients.visit(self, programs, random, queue)
            return
        programs.process.spawn(getattr(programs, step.what)(random, queue))
        if step.what == "move":
            endanger(self, random)
        if step.what == "close":
            self.replace_client(step.who)

    def _heal(self) -> None:
        """Faults end, and everything goes on as it does in good times."""
        world = self.world
        world.tell("WORLD", "heals")
        self.network.refusing_until_us.clear()
        self.network.apart_until_us.clear()
        peers.leave(self.peers)
        for process in self.cluster.processes:
            process.paused_until_us = min(process.paused_until_us, world.now_us)
            process._doom = None
            if process.away:
                self.cluster.supervisor.bring_back(process)
        self.cluster.heal()
        for process in self.history.clients:
            process.paused_until_us = min(process.paused_until_us, world.now_us)
        self.history.healed_us = world.now_us
        span_us = HEAL_US
        if any(step.who < 0 for step in self.steps):
            span_us += self.options.shard_settings.consumer_timeout_ms * 1000
        span_us += self._settles_us
        world.run_until(world.now_us + span_us - LOOK_AGAIN_US)
        missing, idle = checkers.unknown_leases(self), checkers.idle_places(self)
        world.run_until(world.now_us + LOOK_AGAIN_US)
        checkers.serves(self)
        missing &= checkers.unknown_leases(self)
        checkers.report_idle(self, idle & checkers.idle_places(self))
        if missing:  # a heartbeat without an answer, and the next one, may take a timeout each
            world.run_until(world.now_us + round(2e6 * self.options.timeout_s))
            missing &= checkers.unknown_leases(self)
        checkers.report_unknown(self, missing)

    def _audit(self) -> None:
        """Everybody leaves; an auditor looks at everything, takes all of it, and looks again after everything was killed."""
        world, history = self.world, self.history
        world.tell("WORLD", "everybody leaves, an auditor comes")
        history.audit_us = world.now_us
        everybody = [*self.clients, *self.guests]
        for programs in everybody:
            programs.quiet = True
            programs.process.spawn(programs.close(Random(0), ""))
        self._run_until(lambda: all(programs.process.closed_us is not None for programs in everybody), 3_000_000)
        auditor = self.new_client()
        looks = partial(checkers.strays, self), partial(checkers.unfinished, self)
        self._wait_for(auditor, checkers.audit(auditor, history, self._queues_in_order, *looks))
        history.drained_us = world.now_us
        world.tell("WORLD", "everything is killed, and starts again")
        for process in self.cluster.processes:
            process.kill()
        self._run_until(self.cluster.is_up, HEAL_US + self._settles_us)
        checkers.serves(self)
        self._wait_for(auditor, checkers.audit_again(auditor, history))
        auditor.process.spawn(auditor.close(Random(0), ""))
        world.run_until(world.now_us + 500_000)

    def _wait_for(self, programs: Programs, coroutine: Any) -> None:
        done: list[bool] = []

        async def whole() -> None:
            try:
                await coroutine
            except FilaError as error:
                self.history.fail("audit", f"the auditor was refused: {error!r}")
            done.append(True)

        programs.process.spawn(whole())
        self._run_until(lambda: bool(done), AUDIT_US_MAX)
        if not done:
            self.history.fail(
                "audit", f"after {AUDIT_US_MAX / 1e6:.0f} s the auditor is not done: something does not come to rest"
            )

    def _run_until(self, done: Callable[[], bool], span_us: int) -> None:
        """Let things happen until something is done, for ``span_us`` at most."""
        world = self.world
        give_up_us = world.now_us + span_us
        while not done() and world.now_us < give_up_us:
            world.run_until(world.now_us + 100_000)

    def _rest(self) -> Collection[int]:
        """Let nothing happen. Return the shards that want a turn all the same, some time before the end."""
        self.world.tell("WORLD", "rests")
        end_us = self.world.now_us + IDLE_US
        self.world.run_until(end_us - LOOK_AGAIN_US)
        were_busy = checkers.busy(self)
        self.world.run_until(end_us)
        return were_busy

    # --- what is looked at on the way -----------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """What must hold for every shard between its turns."""
        for worker in self.cluster.workers:
            if worker.resting and worker.host is not None:
                try:
                    if worker.clients is not None:
                        worker.clients.check()
                except AssertionError as broken:
                    self.history.fail("invariants", f"{worker.name}'s door: {broken}"[:600])
                for shard in worker.host.shards.values():
                    state = (worker.name, worker.lives, shard.store.committed, len(shard.leases))
                    if self._checked.get(shard.index) == state:
                        continue  # nothing has changed since
                    if not len(shard.batch) and not shard.ledger.changed:
                        self._checked[shard.index] = state
                        try:
                            shard.check()
                        except InvariantBroken as broken:
                            self.history.fail("invariants", f"shard {shard.index}: {broken}"[:600])


def run(
    seed: int | None = None,
    *,
    always: frozenset[str] = frozenset(),
    options: Options | None = None,
    steps: list[Step] | None = None,
    count: bool = False,
) -> Result:
    """Live through a seed, or through given options and steps.

    ``always``: features and faults that a seed has in any case. ``count``: count crossings, which costs 5 %.
    """
    if options is None:
        assert seed is not None
        options = draw(seed, always)
    if steps is None:
        steps = draw_script(options)
    collecting = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _run(options, steps, count=count)
    finally:
        if collecting:
            gc.enable()


def _run(options: Options, steps: list[Step], *, count: bool) -> Result:
    life = Run(options, steps)
    history = life.history
    with ExitStack() as stack:
        stack.enter_context(
            in_place_of_the_kernel(
                life.world, life.network, life.cluster.wall_us, options.router_limits,
                clocks_are_set=life.cluster.clocks_differ or any(step.what == "clock" for step in steps),
            )
        )  # fmt: skip
        stack.enter_context(life.cluster.in_place_of_the_log())
        stack.enter_context(scaled_down(Random(f"{options.seed} limits")))
        crossings = stack.enter_context(counted()) if count else Counter[str]()
        try:
            life.live()
        except Stuck as stuck:
            history.fail("stuck", str(stuck))
        finally:
            life.cluster.stop()
            for process in history.clients:
                process.die()
                for task in process.tasks:
                    with suppress(RuntimeError):  # a finally clause may wait for something, and there is no loop any more
                        task.get_coro().close()  # type: ignore[union-attr]
    for process in history.clients:
        for error in process.loop.errors:
            history.fail("client", f"{process.name}: {error}")
    counts = {"calls": len(history.calls), "grants": len(history.grants), "lines": len(life.world.story)}
    return Result(options, steps, history.failures, life.world.story, counts, crossings)
