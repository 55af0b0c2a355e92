"""The client library for Kafka, or the reason why it is not there. The other modules get it from here."""

try:
    import confluent_kafka as kafka
    from confluent_kafka import admin
except ImportError as error:
    raise ImportError(f"a log on Kafka needs confluent-kafka ({error}): pip install 'fila-cluster[hosts]'") from error

__all__ = ["admin", "kafka"]
