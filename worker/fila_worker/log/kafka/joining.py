"""What a host asks the log before it joins."""

from time import monotonic, sleep
from typing import Final

from fila_worker.log.kafka.partition import KafkaPartition
from fila_worker.log.kafka.settings import KafkaSettings
from fila_worker.log.kafka.topic import TopicError
from fila_worker.log.placement.said import find_keys

LOOK_S: Final = 0.02


def keys_of_log(settings: KafkaSettings) -> str:
    """Return the fingerprint of the keys of the hosts that use the log; empty: there was none yet.

    Waits for the brokers; raises :class:`fila_proto_zmq.errors.StorageError`.
    """
    give_up_at = monotonic() + settings.admin_ms_max / 1000

    def pause() -> None:
        if monotonic() > give_up_at:
            raise TopicError(
                f"the topic {settings.topic} can't be read: partition {settings.control_partition} does not answer; are all brokers up?"
            )
        sleep(LOOK_S)

    return find_keys(KafkaPartition(settings, settings.control_partition, lambda: None), pause)
