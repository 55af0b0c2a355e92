"""A real log through Spark, a queue and Spark again: ``examples/spark_access_log.py``, part by part."""

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from examples import spark_access_log as example
from tests.support.cluster.cluster import Cluster

pytestmark = pytest.mark.whole

ACCESS_LOG = Path(__file__).parents[1] / "data" / "apache_access.log"


def test_every_line_is_there_once_and_the_first_batch_is_fair(
    spark: SparkSession, shared_cluster: Cluster, queue: str, tmp_path: Path
) -> None:
    lines = ACCESS_LOG.read_text(errors="replace").splitlines()
    tenants = Counter(line.split(" ", 1)[0] for line in lines)
    with shared_cluster.client() as client:
        example.load(spark, ACCESS_LOG, shared_cluster.endpoint, queue)
        assert client.queue_stats(queue).pending == len(lines)
        example.drain(spark, shared_cluster.endpoint, queue, len(tenants), tmp_path)
        stats = client.queue_stats(queue)
        assert (stats.depth, stats.acked) == (0, len(lines))
    rows, grouped = example.written(spark, tmp_path)
    assert Counter(row["line"] for row in rows) == Counter(lines)
    assert grouped == tenants
    first = Counter(row["fairness_key"] for row in rows if row["batch"] == 0)
    assert first == dict.fromkeys(tenants, 1)
    example.picture(tmp_path / "shares.png", tenants, tenants, first)
    assert (tmp_path / "shares.png").read_bytes().startswith(b"\x89PNG")
