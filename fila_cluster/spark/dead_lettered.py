"""One more column, for those who ask for it by schema: when a dead letter was given up.

Programs rely on the columns that ``read.format("fila")`` has; so this one is there only for
``read.format("fila").schema(DEAD_LETTER_SCHEMA)``.
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructField, StructType, TimestampType

from fila_cluster.spark.schema import ARROW_SCHEMA, READ_SCHEMA
from fila_proto_zmq.record import extension_of

COLUMN: Final = "dead_lettered_at"
DEAD_LETTER_SCHEMA: Final = StructType([*READ_SCHEMA.fields, StructField(COLUMN, TimestampType())])
"""The reader's columns, and this one: null for what is no dead letter."""

_MOMENT: Final = ARROW_SCHEMA.field("enqueued_at").type
_ARROW_SCHEMA: Final = ARROW_SCHEMA.append(pa.field(COLUMN, _MOMENT))


def with_dead_lettered_at(batch: pa.RecordBatch, records: Sequence[bytes]) -> pa.RecordBatch:
    """A batch of the reader with the column that its records tell."""
    moments_ms = [extension_of(record).dead_lettered_ms for record in records]
    moments = pa.array([None if moment is None else moment * 1000 for moment in moments_ms], pa.int64())
    return pa.RecordBatch.from_arrays([*batch.columns, moments.view(_MOMENT)], schema=_ARROW_SCHEMA)
