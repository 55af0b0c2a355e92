"""Columns of files as options of messages."""

from fila_cluster.spark.columns import FIELDS
from fila_cluster.spark.pipelines.load import OPTION_TYPES


def test_every_field_of_a_row_besides_its_payload_can_be_an_option():
    assert set(OPTION_TYPES) == set(FIELDS) - {"payload"}
