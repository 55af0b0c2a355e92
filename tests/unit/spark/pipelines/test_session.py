"""What Spark says in fifty lines, in one."""

import pytest
from pyspark.errors import AnalysisException

from fila_cluster.spark.pipelines.session import PipelineError, plain_errors, sentence_of

TRACEBACK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 4327, in invoke_udf
    run_process()
  File "writing.py", line 14, in write
    raise InvalidArgumentError("column 'payload' is null in row 3")
fila_proto_zmq.errors.InvalidArgumentError: column 'payload' is null in row 3
"""


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (TRACEBACK, "column 'payload' is null in row 3"),
        (TRACEBACK.replace("fila_proto_zmq.errors.InvalidArgumentError", "ValueError"), "ValueError: column 'payload' is null in row 3"),
        (f"[PYTHON_DATA_SOURCE_ERROR] Failed: {TRACEBACK}\n\tat org.apache.spark.Some.thing(Some.scala:1)", "column 'payload' is null in row 3"),
        ("[PATH_NOT_FOUND] Path does not exist: file:/none. SQLSTATE: 42K03", "Path does not exist: file:/none."),
        (
            "[STREAM_FAILED] Query [id = 1-2, runId = 3-4] terminated with exception: [SOME_CODE] no space left SQLSTATE: XXKST\n=== x",
            "no space left",
        ),
        ("Traceback (most recent call last):\nnothing more", "Traceback (most recent call last)"),
        ("", "Spark gave no reason"),
    ],
)  # fmt: skip
def test_the_sentence_that_matters(said, line):
    assert sentence_of(said) == line


def test_an_error_of_a_traceback_inside_another_is_the_last_one():
    said = f"Traceback (most recent call last):\n  File\nKeyError: 'x'\n\nDuring handling, another:\n\n{TRACEBACK}"
    assert sentence_of(said) == "column 'payload' is null in row 3"


def test_errors_that_are_not_sparks_go_through():
    with pytest.raises(ZeroDivisionError), plain_errors():
        raise ZeroDivisionError


def test_sparks_errors_become_one_line():
    with pytest.raises(PipelineError, match=r"^no such column$"), plain_errors():
        raise AnalysisException("[UNRESOLVED] no such column\n'Project ['x]")
