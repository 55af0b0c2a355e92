"""The Spark session of a command, and the error of a Spark job in one line.

Spark wraps the reason of a failure in a Python traceback, in a stage failure, in a query failure, in a Java trace. An error
of fila-cluster in a task arrives as text only, so it is found as the end of the last Python traceback.
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
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from fila_cluster.spark import register

_RAISED = re.compile(r"^(?:[A-Za-z_]\w*\.)*(?P<kind>[A-Za-z_]\w*): (?P<text>.*)")
"""The line that ends a traceback: ``package.module.SomeError: what happened``."""
_CODE = re.compile(r"^\[[A-Z0-9_.]+\] ")
_QUERY = re.compile(r"^Query \[id = [^\]]*\] terminated with exception: ")
_STATE = re.compile(r" SQLSTATE: \w+;?")
_OURS = ("fila_proto_zmq.errors.", "fila_cluster.errors.")


class PipelineError(Exception):
    """A pipeline can't start, or has failed: one line for a person."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn Spark's exceptions into a :class:`PipelineError`; the original is its cause."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise PipelineError(sentence_of(str(error))) from error


def sentence_of(text: str) -> str:
    """Return the reason in an error of Spark."""
    lines = text.splitlines()
    traces = [number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    if traces and (said := _end_of_traceback(lines[traces[-1] + 1 :])):
        return said
    first = next((line.strip() for line in lines if line.strip()), "Spark gave no reason")
    for prefix in (_CODE, _QUERY, _CODE):  # a query's failure contains its job's
        first = prefix.sub("", first)
    return _STATE.sub("", first).rstrip(":; ")


def _end_of_traceback(lines: list[str]) -> str | None:
    for line in lines:
        if match := _RAISED.match(line):
            ours = line.startswith(_OURS)
            return match["text"].strip() if ours else f"{match['kind']}: {match['text'].strip()}"
    return None


MASTER_DEFAULT = "local[*,4]"
"""All cores; a failed task is tried again, as in a real cluster."""

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "16",  # the commands' aggregates are small
    "spark.sql.session.timeZone": "UTC",
}
_ON_THIS_MACHINE = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""Spark must start also on a machine whose own name does not resolve."""
_THROWN = re.compile(r'^Exception in thread "\w+" (?:[\w.]+: )?')


@contextmanager
def spark_session(master: str | None, *, name: str, verbose: bool = False) -> Iterator[SparkSession]:
    """Open a session on ``master`` for a context. ``verbose``: show Spark's own output on standard error. ``SPARK_HOME``,
    ``spark-defaults.conf`` and ``PYSPARK_SUBMIT_ARGS`` hold as they do for any PySpark program."""
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
    """Silence the log of Spark's Python side, whose fifty lines repeat an exception."""
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
        streams = {"stdout": log or sys.stderr, "stderr": log or sys.stderr}
        gateway = launch_gateway(conf, streams)  # type: ignore[no-untyped-call]
        return SparkSession(SparkContext(gateway=gateway, conf=conf))
    except Exception as error:
        if gateway is not None:
            gateway.shutdown()
        raise PipelineError(f"Spark does not start: {_reason(error, log)}") from error
    finally:
        if signal.getsignal(signal.SIGINT) is not on_interrupt:  # Spark's handler calls the JVM in the middle of another call
            signal.signal(signal.SIGINT, on_interrupt)


def _reason(error: Exception, log: IO[str] | None) -> str:
    """Return the line of the log with the reason, else the error's first line."""
    if log is not None and isinstance(error, PySparkRuntimeError):
        log.seek(0)
        lines = [line.strip() for line in log if line.strip()]
        telling = [line for line in lines if "Exception" in line or "Error" in line] or lines
        if telling:
            return _THROWN.sub("", telling[0])
    return str(error).partition("\n")[0]
