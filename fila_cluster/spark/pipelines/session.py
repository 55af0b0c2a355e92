"""A Spark session for one command: quiet, with ``format("fila")`` registered, and gone with the command.

The JVM's output goes to a file, not to the terminal: log4j, the JVM itself and the Python workers all write there, and no
setting silences all three. When Spark does not start, the file's last words are the reason; ``verbose`` leaves it all on the
terminal instead. Left out: Spark Connect, which cannot register streaming listeners that run beside the driver.
"""

import logging
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import IO

from py4j.java_gateway import JavaGateway
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from fila_cluster.spark import register
from fila_cluster.spark.pipelines.failure import PipelineError

MASTER_DEFAULT = "local[*,4]"
"""All cores, and a task that fails is tried again, as a real cluster would."""

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "16",  # the commands' aggregates are small
    "spark.sql.session.timeZone": "UTC",
}
_ON_THIS_MACHINE = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""A machine whose own name does not resolve is no reason not to start."""
_THROWN = re.compile(r'^Exception in thread "\w+" (?:[\w.]+: )?')


@contextmanager
def spark_session(master: str | None, *, name: str, verbose: bool = False) -> Iterator[SparkSession]:
    """A session on ``master`` that is stopped at the end. ``verbose``: Spark may say what it likes on standard error.

    ``SPARK_HOME``, ``spark-defaults.conf`` and ``PYSPARK_SUBMIT_ARGS`` hold as they do for any PySpark program.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = master or MASTER_DEFAULT
    settings = _SETTINGS | (_ON_THIS_MACHINE if master.startswith("local") else {})
    conf = SparkConf().setAppName(name).setMaster(master).setAll([*settings.items()])
    with TemporaryFile("w+", errors="replace") as log, _quiet(verbose=verbose):
        session = _started(conf, None if verbose else log)
        try:
            register(session)
            yield session
        finally:
            session.stop()


@contextmanager
def _quiet(*, verbose: bool) -> Iterator[None]:
    """What Spark's Python side logs in fifty lines, an exception says in one."""
    if not verbose:
        logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _started(conf: SparkConf, log: IO[str] | None) -> SparkSession:
    gateway: JavaGateway | None = None
    on_interrupt = signal.getsignal(signal.SIGINT)
    try:
        gateway = launch_gateway(conf, {"stdout": log or sys.stderr, "stderr": log or sys.stderr})  # type: ignore[no-untyped-call]
        return SparkSession(SparkContext(gateway=gateway, conf=conf))
    except Exception as error:
        if gateway is not None:
            gateway.shutdown()
        raise PipelineError(f"Spark does not start: {_reason(error, log)}") from error
    finally:
        if signal.getsignal(signal.SIGINT) is not on_interrupt:  # Spark's talks to the JVM in the middle of another call
            signal.signal(signal.SIGINT, on_interrupt)


def _reason(error: Exception, log: IO[str] | None) -> str:
    """The line of the log that says why, else the error's first one."""
    if log is not None and isinstance(error, PySparkRuntimeError):
        log.seek(0)
        lines = [line.strip() for line in log if line.strip()]
        telling = [line for line in lines if "Exception" in line or "Error" in line] or lines
        if telling:
            return _THROWN.sub("", telling[0])
    return str(error).partition("\n")[0]
