"""What went wrong in a Spark job, in one line.

Spark wraps the one sentence that matters in a Python traceback, in a stage failure, in a query failure, in a Java trace. An
error of ours in a task arrives as text only, so it is found as the end of the last Python traceback.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

_RAISED = re.compile(r"^(?:[A-Za-z_]\w*\.)*(?P<kind>[A-Za-z_]\w*): (?P<text>.*)")
"""The line that ends a traceback: ``package.module.SomeError: what happened``."""
_CODE = re.compile(r"^\[[A-Z0-9_.]+\] ")
_QUERY = re.compile(r"^Query \[id = [^\]]*\] terminated with exception: ")
_STATE = re.compile(r" SQLSTATE: \w+;?")
_OURS = ("fila_proto_zmq.errors.", "fila_cluster.errors.")


class PipelineError(Exception):
    """A pipeline can't start or can't go on: one line for a person."""


@contextmanager
def told_plainly() -> Iterator[None]:
    """Turn Spark's exceptions into a :class:`PipelineError`; the original is its cause."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise PipelineError(one_line(str(error))) from error


def one_line(text: str) -> str:
    """The sentence that matters in what Spark said."""
    lines = text.splitlines()
    traces = [number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    if traces and (said := _end_of_traceback(lines[traces[-1] + 1 :])):
        return said
    first = next((line.strip() for line in lines if line.strip()), "Spark gave no reason")
    for prefix in (_CODE, _QUERY, _CODE):  # a query's failure has that of its job in it
        first = prefix.sub("", first)
    return _STATE.sub("", first).rstrip(":; ")


def _end_of_traceback(lines: list[str]) -> str | None:
    for line in lines:
        if match := _RAISED.match(line):
            ours = line.startswith(_OURS)
            return match["text"].strip() if ours else f"{match['kind']}: {match['text'].strip()}"
    return None
