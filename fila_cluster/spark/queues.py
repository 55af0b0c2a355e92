"""The queues that a selection means, as the broker knows them now."""

from fila_cluster.client import Client, QueueInfo
from fila_cluster.spark.selection import Selection
from fila_proto_zmq.errors import QueueNotFoundError


def meant(client: Client, selection: Selection, *, to_drain: bool) -> list[QueueInfo]:
    """The queues that are meant, in the order of their names; ``to_drain``: by somebody who takes messages out of them.

    Raises :class:`QueueNotFoundError` if one that is named does not exist; a pattern may match none.
    """
    is_meant = selection.is_drained if to_drain else selection.__contains__
    infos = [info for info in client.list_queues(selection.prefix) if is_meant(info.name)]
    missing = set(selection.names) - {info.name for info in infos}
    if missing:
        name = min(missing)
        raise QueueNotFoundError(
            f"no queue {name!r}: create it with `fila-cluster queue create {name}` or create_queue()", details={"queue": name}
        )
    return infos
