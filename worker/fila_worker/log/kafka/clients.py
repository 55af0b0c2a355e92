"""The settings of librdkafka's clients, with their reasons. Each value is part of the log's promise."""

import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from fila_proto_zmq.errors import StorageError
from fila_worker.log.kafka.settings import KafkaSettings

try:
    import confluent_kafka as kafka
    from confluent_kafka import admin
except ImportError as error:
    raise ImportError(f"a log on Kafka needs confluent-kafka ({error}): pip install 'fila-cluster[hosts]'") from error

__all__ = ["admin", "kafka"]


Property = str | int | bool
Listener = Callable[[kafka.KafkaError], None]
REFUSED: Final = frozenset({kafka.KafkaError._AUTHENTICATION, kafka.KafkaError.SASL_AUTHENTICATION_FAILED})
_Client = TypeVar("_Client")
_SILENT: Final = logging.Logger("librdkafka", logging.CRITICAL + 1)

RECONNECT: Final[dict[str, Property]] = {
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 1_000,
}
"""The defaults wait up to ten seconds before they look for a broker that is back, and five minutes for a moved partition.

For Kafka, a killed leader leads its partition for 3 s and more. A client that asked meanwhile asks again after the interval:
with 5 s one of ten appends of all partitions waited for 5.8 s or longer after such a kill, with 1 s for 5.0 s. It costs a
small request a second for each client.
"""


class Trouble:
    """The library's last error about brokers that it can't reach. It tries again."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self.text = ""
        self.refused = False
        """Whether a broker does not accept who we are."""

    def take(self, error: kafka.KafkaError) -> None:
        """Take an error."""
        if error.code() != kafka.KafkaError._ALL_BROKERS_DOWN or not self.text:  # that follows the reason, and has none
            self.text = self._settings.without_secrets(error.str())
        self.refused = self.refused or error.code() in REFUSED

    @property
    def as_reason(self) -> str:
        """The end of a sentence about a failure; empty without trouble."""
        return f"; the last problem was: {self.text}" if self.text else ""


def _common(settings: KafkaSettings, listener: Listener | None) -> dict[str, Any]:
    events = {} if listener is None else {"error_cb": listener}
    return {
        **events,
        **settings.properties,
        **RECONNECT,
        "bootstrap.servers": settings.bootstrap_servers,
        "socket.timeout.ms": max(10, settings.request_ms_max),
        "socket.connection.setup.timeout.ms": max(1_000, settings.request_ms_max),
        "allow.auto.create.topics": False,  # a topic that was deleted must not come back with the brokers' defaults
        "message.max.bytes": settings.record_bytes_max,
        "log_level": 0,  # errors come through error_cb
        "logger": _SILENT,  # or it would write fatal ones to stderr as well
    }


def new_producer(settings: KafkaSettings, listener: Listener) -> kafka.Producer:
    """Return a producer for one partition."""
    config = {
        **_common(settings, listener),
        "enable.idempotence": True,
        "acks": "all",
        # After broker deaths, several requests in flight were written twice or reported without an offset.
        "max.in.flight.requests.per.connection": 1,
        # So they go in batches. Of large records a batch has one or two: with a larger batch.size, a record of 0.5 MB cost 3
        # to 4 ms of CPU instead of 0.5, and got there no faster.
        "batch.num.messages": 100,
        "linger.ms": 0,
        "socket.nagle.disable": True,
        # The library sends later records behind one that it gives up, and that one may be in the log. So it never gives up by
        # time, and a refused record ends the producer. The appender has a time limit.
        "message.timeout.ms": 0,
        "enable.gapless.guarantee": True,
        # The broker's answer comes before the socket's timeout.
        "request.timeout.ms": max(1, settings.request_ms_max * 4 // 5),
        "queue.buffering.max.messages": 0,
        "queue.buffering.max.kbytes": settings.unreported_bytes_max // 512,  # twice: the appender's own limit comes first
    }
    return _made(kafka.Producer, config, settings)


def new_consumer(settings: KafkaSettings, listener: Listener) -> kafka.Consumer:
    """Return a consumer without a group: the readers are chosen elsewhere."""
    fetch_bytes = max(settings.prefetch_bytes_max, settings.record_bytes_max)
    config = {
        **_common(settings, listener),
        "group.id": "fila",  # the library wants one
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_uncommitted",
        "check.crcs": True,
        "fetch.message.max.bytes": settings.prefetch_bytes_max,
        "fetch.max.bytes": fetch_bytes,
        "receive.message.max.bytes": fetch_bytes + 1024 * 1024,
        "queued.max.messages.kbytes": max(1, settings.prefetch_bytes_max // 1024),
        "fetch.queue.backoff.ms": 10,  # a full queue is emptied by the next read
        "fetch.error.backoff.ms": 100,
    }
    return _made(kafka.Consumer, config, settings)


def new_admin(settings: KafkaSettings, listener: Listener | None = None) -> admin.AdminClient:
    """Return a client for questions about topics. Keep it as long as its futures: they fail with it.

    With a listener it must be polled, or the events for the listener pile up.
    """
    # A question for a broker that is down keeps two threads of the library busy: they wake each other, to connect and to
    # report that there is no connection (seen with librdkafka 2.16, half a core for each client). A connection to each broker
    # avoids that.
    config = {
        **_common(settings, listener),
        "enable.sparse.connections": False,
        # A question goes to the partition's leader as the cache has it, and one that fails does not renew the cache. By
        # default the questions for a partition whose leader was killed went to the dead broker for 15 s, long after another
        # one led it.
        "metadata.max.age.ms": 1_000,
    }
    return _made(admin.AdminClient, config, settings)


def _made(kind: Callable[[dict[str, Any]], _Client], config: dict[str, Any], settings: KafkaSettings) -> _Client:
    try:
        return kind(config)
    except kafka.KafkaException as error:
        problem = settings.without_secrets(text_of(error))
        raise StorageError(f"the log on Kafka can't be used as it is configured: {problem}; change its properties") from None


def text_of(error: kafka.KafkaError | BaseException) -> str:
    """Return the text of an error of the library."""
    if isinstance(error, kafka.KafkaError):
        return error.str()
    first = error.args[0] if error.args else None
    return first.str() if isinstance(first, kafka.KafkaError) else str(error) or type(error).__name__
