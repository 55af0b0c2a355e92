"""docs/why.md lists the reasons that there are."""

from fila_proto_zmq.reasons import ReasonCode
from fila_worker.core.explain.backlog_reasons import KEYS_MAX
from fila_worker.core.measures import SPAN_MS
from fila_worker.core.model.token_client import LIVE_MS
from tests.support.explained import PAGE, ROWS


def test_every_code_is_there_in_the_order_in_which_they_are_told() -> None:
    assert list(ROWS) == [code.value for code in ReasonCode]


def test_every_code_says_what_to_do() -> None:
    assert [code for code, (meaning, *_) in ROWS.items() if len(meaning) < 20] == []


def test_numbers_in_prose_are_those_of_the_code() -> None:
    flowing = " ".join(PAGE.split())
    assert f"At most {KEYS_MAX:,} keys are looked at" in flowing
    assert (LIVE_MS, SPAN_MS) == (10_000, 10_000)  # "not read for ten seconds", "the last ten seconds"
