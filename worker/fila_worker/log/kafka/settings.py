"""How to reach the log of a cluster on Kafka, and what it must be like."""

from typing import Final

import msgspec

MIB: Final = 1024 * 1024
OVERHEAD_BYTES: Final = 512
"""Kafka's own bytes for a record that is alone in its batch, and more: 61 for the batch, up to 30 for the record."""

PROPERTIES: Final = (
    "api.version.", "broker.address.", "client.", "compression.", "connections.max.idle.ms", "enable.sasl.", "enable.ssl.",
    "https.", "resolve_canonical_", "sasl.", "security.protocol", "socket.keepalive.", "socket.nagle.", "socket.receive.",
    "socket.send.", "ssl.", "ssl_",
)  # fmt: skip
"""The beginnings of the properties that users may set: how to reach brokers, and how to compress records. This package sets
all others, because the promises of a shard depend on them."""


def partitions_for(shards: int) -> int:
    """Return how many partitions the topic of a cluster has: one for each shard, and the control partition."""
    return shards + 1


def shards_in(partitions: int) -> int:
    """Return how many shards a cluster has whose topic has so many partitions."""
    return max(1, partitions - 1)


class KafkaSettings(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The log of a cluster: ``topic`` has a partition for each shard, and behind them the control partition."""

    bootstrap_servers: str
    """Some of the brokers: ``HOST:PORT,HOST:PORT``."""
    topic: str
    partitions: int
    """See :func:`partitions_for`."""
    replicas: int = 3
    """How many brokers keep each partition. One broker alone is not safe, so 1 must be set explicitly."""
    in_sync_min: int | None = None
    """How many of them must have a record before it is confirmed. Default: the majority."""
    record_bytes_max: int = 64 * MIB
    """The topic's ``max.message.bytes``."""
    unreported_bytes_max: int = 256 * MIB
    """Bytes of appends without a report. With more, the appender fails."""
    prefetch_bytes_max: int = 16 * MIB
    """Bytes that a reader may have in memory."""
    properties: dict[str, str] = {}
    """Properties of librdkafka for TLS, SASL, sockets and compression. Their values are in no error and no log."""
    patience_ms: int = 60_000
    """After that time without a report the outcome of an append is unknown. Set it above the longest stall of a broker."""
    request_ms_max: int = 5_000
    """A broker that does not answer for that long is asked again, or another one. It limits what a frozen broker costs."""
    answer_ms_max: int = 2_000
    """How long a question for the end of a partition may take."""
    admin_ms_max: int = 30_000
    """How long making, describing and trimming a topic may take."""

    def __post_init__(self) -> None:
        for name in ("partitions", "replicas", "patience_ms", "request_ms_max", "answer_ms_max", "admin_ms_max"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} is {value}; it must be 1 or more")
        if not 1 <= self.in_sync <= self.replicas:
            raise ValueError(f"in_sync_min is {self.in_sync}; it must be from 1 to the number of replicas, {self.replicas}")
        for name in ("record_bytes_max", "unreported_bytes_max", "prefetch_bytes_max"):
            if not 2 * OVERHEAD_BYTES <= (value := getattr(self, name)) <= 500 * MIB:
                raise ValueError(f"{name} is {value:,}; it must be from {2 * OVERHEAD_BYTES:,} to {500 * MIB:,}")
        for name in self.properties:
            if not name.startswith(PROPERTIES):
                raise ValueError(
                    f"the property {name} is not for users to set; those for TLS, SASL, sockets and compression are: "
                    f"{', '.join(PROPERTIES)}"
                )

    @property
    def in_sync(self) -> int:
        """The number of replicas that must have a record."""
        return self.replicas // 2 + 1 if self.in_sync_min is None else self.in_sync_min

    @property
    def control_partition(self) -> int:
        """The number of the partition for the states of the nodes."""
        return self.partitions - 1

    @property
    def data_bytes_max(self) -> int:
        """The largest record that fits into the topic."""
        return self.record_bytes_max - OVERHEAD_BYTES

    def without_secrets(self, text: str) -> str:
        """Return a text of the library without the values of ``properties`` that may stand in it."""
        for name, value in self.properties.items():
            if value and (value.lower() not in _PUBLIC or name.endswith(_SECRET)):
                text = text.replace(value, f"<{name}>")
        return text

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        shown["properties"] = dict.fromkeys(self.properties, "…")
        return f"KafkaSettings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


_PUBLIC: Final = {
    "sasl_ssl", "sasl_plaintext", "ssl", "plaintext", "plain", "gssapi", "oauthbearer", "scram-sha-256", "scram-sha-512",
    "true", "false", "none", "lz4", "zstd", "gzip", "snappy",
}  # fmt: skip
_SECRET: Final = ("password", "secret", "pem")
