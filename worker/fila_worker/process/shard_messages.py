"""Messages without an answer: of the router and its token bank to a process or its shards, and between shards.

Messages between shards of one process do not leave it.
"""

from contextlib import suppress
from typing import Final, get_args

from fila_proto_zmq.commands import (
    AdoptShards,
    Appoint,
    Appointed,
    BatchJoined,
    ChangesByBroker,
    Command,
    EndClient,
    ForgetParts,
    GrantPlaces,
    Grants,
    JoinBatch,
    MakeByTemplate,
    MessagesTransferred,
    Park,
    PartitionIdle,
    PartitionsClosed,
    PutDraining,
    ReportMove,
    ReportParts,
    ReportPlaces,
    SealParts,
    TransferMessages,
)
from fila_proto_zmq.errors import FilaError
from fila_worker.core.due_time import AT_ONCE
from fila_worker.core.effects import Post
from fila_worker.process.feature import ProcessFeature

BETWEEN_SHARDS: Final = (
    TransferMessages,
    MessagesTransferred,
    Appoint,
    Appointed,
    JoinBatch,
    BatchJoined,
    SealParts,
    ReportParts,
    ForgetParts,
    ReportPlaces,
    GrantPlaces,
    MakeByTemplate,
    PartitionIdle,
    PartitionsClosed,
    ReportMove,
)


class ShardMessages(ProcessFeature):
    """The delivery of messages to shards. A message for a shard that is not here is skipped: it was for its last process."""

    def __init__(self) -> None:
        super().__init__()
        self.messages = {
            Park: self._park,
            Grants: self._grant,
            EndClient: self._end_client,
            PutDraining: self._drain,
            AdoptShards: _ignore,
            **dict.fromkeys(BETWEEN_SHARDS, self._deliver),
            **dict.fromkeys(get_args(ChangesByBroker), self._change),
        }
        self.between: list[Command] = []
        """Messages between shards of this process, for the next turn."""

    def on_post(self, post: Post) -> bool:
        """Take in a message for a shard of this process. Return True if it is for no other process."""
        command = post.command
        stays = isinstance(command, BETWEEN_SHARDS) and command.to_shard in self.process.shards
        if stays or isinstance(command, Park):  # parks are for the other shards here, and for all other workers
            self.between.append(command)
            self.timer.by(AT_ONCE)
        return stays

    def turn(self, now_ms: int) -> int | None:
        """Deliver the messages of the last turn."""
        between, self.between = self.between, []
        for command in between:
            with suppress(FilaError):  # as if it had come over the wire: no client waits for an answer
                self.messages[type(command)](command, now_ms)
        return None

    def _drain(self, command: PutDraining, now_ms: int) -> None:
        self.process.draining = command.draining
        self.process.offers += 1

    def _park(self, command: Park, now_ms: int) -> None:
        self.process.each(now_ms, lambda shard: shard.park(command.parks, now_ms))

    def _end_client(self, command: EndClient, now_ms: int) -> None:
        self.process.each(now_ms, lambda shard: shard.end_client(command.client, now_ms))

    def _grant(self, grants: Grants, now_ms: int) -> None:
        slot = self.process.slots.get(grants.shard)
        if slot is not None:
            self.process.guarded(slot, now_ms, lambda shard: shard.granted(grants, now_ms))

    def _change(self, command: ChangesByBroker, now_ms: int) -> None:
        self.process.config.change(command, now_ms)

    def _deliver(self, command: TransferMessages, now_ms: int) -> None:  # or any other of BETWEEN_SHARDS
        slot = self.process.slots.get(command.to_shard)
        if slot is not None:
            self.process.guarded(slot, now_ms, lambda shard: shard.on_peer_message(command, now_ms))


def _ignore(command: AdoptShards, now_ms: int) -> None:
    """Do nothing: without departures no shards come to this process."""
