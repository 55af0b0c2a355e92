"""Bugs of the places of throttle keys, to be planted: see :mod:`planted`."""

from contextlib import ExitStack
from typing import Any

from fila_proto_zmq.commands import ReportPlaces
from fila_worker.core.effects import Post
from fila_worker.core.explain import concurrency
from fila_worker.core.model.state import State
from fila_worker.core.places.bank import ROW, PlaceBank
from fila_worker.process.held import HeldEffects
from tests.simulation.faults.planting import Plant, replace


def place_counted_twice(stack: ExitStack) -> None:
    """A place that comes back to the bank is free twice."""

    def make(real: Any) -> Any:
        def settle(bank: Any, shard: int, told: Any) -> None:
            key = bank.keys.get(told.key)
            account = key.accounts.get(shard) if key is not None else None
            if account is not None and account.number == told.number:
                told.returned += max(0, told.returned - account.returned)
            real(bank, shard, told)

        return settle

    replace(stack, PlaceBank, "_settle", make)


def forgotten_place(stack: ExitStack) -> None:
    """Leases that a restart finds have no places: these go back to the bank."""

    def make(real: Any) -> Any:
        def count_leased(state: Any, lease: Any, indexes: Any, each: int) -> None:
            if each < 0:
                real(state, lease, indexes, each)

        return count_leased

    replace(stack, State, "count_leased", make)


def anybody_holds(stack: ExitStack) -> None:
    """All leased messages with throttle keys are named as holders of any of them."""
    replace(stack, concurrency, "_members", lambda real: lambda leases, counts: real(leases, lambda lane: True))


def hasty_return(stack: ExitStack) -> None:
    """A shard gives places back before the commit that ends their leases is confirmed."""

    def make(real: Any) -> Any:
        def hold(held: Any, store: Any, effects: Any, now_ms: int) -> Any:
            hasty = [each for each in effects if isinstance(each, Post) and isinstance(each.command, ReportPlaces)]
            return hasty + real(held, store, [each for each in effects if each not in hasty], now_ms)

        return hold

    replace(stack, HeldEffects, "hold", make)


def forgetful_bank(stack: ExitStack) -> None:
    """A new bank grants before it knows what an earlier one has granted."""

    def make(real: Any) -> Any:
        def stored(bank: Any, prefix: bytes) -> Any:
            return iter(()) if prefix == ROW else real(bank, prefix)

        return stored

    replace(stack, PlaceBank, "_stored", make)


PLACE_BUGS: tuple[Plant, ...] = (place_counted_twice, forgotten_place, hasty_return, forgetful_bank, anybody_holds)
