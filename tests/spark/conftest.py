"""One Spark session for all tests: it takes five seconds to start."""

import os
import signal
import sys
import warnings
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from fila_cluster.spark import register
from fila_process.parent import handling
from tests.support.cluster.cluster import environment
from tests.support.external.spark_java import QUICK, quick_java
from tests.support.machine import JAVA, require

MASTER = "local[2,4]"
"""Two cores, and a task may fail three times before its job does."""

CONFIG = {
    "spark.executor.extraJavaOptions": QUICK,
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
    os.environ.setdefault("SPARK_SUBMIT_OPTS", quick_java())


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
    with handling(signal.default_int_handler, signal.SIGINT):  # Spark's handler does not raise KeyboardInterrupt
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    yield session
    streams = session._jsparkSession.streams()
    for listener in streams.listListeners():
        streams.removeListener(listener)  # what has not been told yet waits 5 s for each batch of a cluster that is gone
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # py4j leaves its sockets to the garbage collector
        session.stop()
