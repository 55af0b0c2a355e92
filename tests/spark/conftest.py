"""One Spark session for all tests: it takes five seconds to start."""

import os
import sys
import warnings
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from fila_cluster.spark import register
from tests.support.cluster import environment
from tests.support.machine import JAVA, require

MASTER = "local[2,4]"
"""Two cores, and a task may fail three times before its job does."""

QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Tests run for seconds: a JVM that optimises nothing for later is done a third sooner."""

CONFIG = {
    "spark.executor.extraJavaOptions": QUICK_JVM,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
}


@pytest.fixture(scope="session", autouse=True)
def _java() -> None:
    """All tests of this directory need it, those too that only start programs."""
    require(JAVA)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_JVM)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session, in which ``format("fila")`` is known."""
    for name in set(os.environ) - set(environment()):
        del os.environ[name]  # a cluster's address in the environment would find its way into the planner
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    home = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master(MASTER).appName("fila-cluster tests")
    for name, value in CONFIG.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.local.dir", str(home / "local")).config("spark.sql.warehouse.dir", str(home / "tables"))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    yield session
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # py4j leaves its sockets to the garbage collector
        session.stop()
