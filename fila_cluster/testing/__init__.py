"""A testing kit: the real broker in a test's own process, on a clock that the test moves.

::

    def test_an_order_is_tried_again(fila):
        fila.create_queue("orders")
        fila.enqueue("orders", b"one")
        fila.receive("orders")[0].retry(after=30)
        fila.clock.advance(30)
        assert fila.receive("orders")[0].attempts == 1

``fila`` is a fixture of the pytest plugin that comes with the package; ``with broker() as fila`` is the same elsewhere. Other
clients of the process reach the broker at ``fila.endpoint``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fila_cluster.testing.kit import Fila, QueueState, broker
    from fila_cluster.testing.memory import Clock

__all__ = ["Clock", "Fila", "QueueState", "broker"]


def __getattr__(name: str) -> Any:
    """Import the broker when it is first used: pytest loads the plugin of this package in every run."""
    if name == "Clock":
        from fila_cluster.testing.memory import Clock  # noqa: PLC0415

        return Clock
    if name in __all__:
        from fila_cluster.testing import kit  # noqa: PLC0415

        return getattr(kit, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
