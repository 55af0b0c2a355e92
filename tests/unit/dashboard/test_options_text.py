"""The options of a queue in a form: what is shown, and what a change of the texts asks for."""

import pytest

from fila_cluster.client.calls.queues import encode
from fila_cluster.figures import duration_s, written_ms
from fila_cluster.ops.dashboard.queues.options import FIELDS, changed_options, facts, texts_of
from fila_proto_zmq.commands import QueueOptions

SET = QueueOptions(
    visibility_timeout_ms=90_000, max_attempts=5, dead_letter="discard", delivery="at_most_once", max_in_flight_per_key=1,
    default_ttl_ms=7_200_000, idle_expiry_ms=1500, partitions=0, spread="message",
)  # fmt: skip


def test_the_form_has_each_option_but_hooks() -> None:
    wire = set(QueueOptions.__struct_fields__)
    assert wire - {field.field for field in FIELDS} == {
        "on_enqueue",
        "on_failure",
        "lua_timeout_ms",
        "lua_memory_limit_bytes",
    }


def test_what_is_not_changed_is_not_sent() -> None:
    for options in (QueueOptions(), SET):
        assert changed_options(texts_of(options), texts_of(options)) == {}


def test_a_word_stands_for_a_number_that_the_broker_knows() -> None:
    assert texts_of(SET)["partitions"] == "auto"
    assert dict(facts(SET))["partitions"] == "auto"
    assert changed_options(texts_of(SET), texts_of(SET) | {"partitions": "4"}) == {"partitions": 4}


def test_texts_make_the_options_that_they_show_and_an_empty_one_the_default() -> None:
    given = changed_options(texts_of(QueueOptions()), texts_of(SET))
    assert encode(given)[0] == SET
    back = changed_options(texts_of(SET), texts_of(SET) | {"max_attempts": " ", "default_ttl": ""})
    assert back == {"max_attempts": None, "default_ttl": None}


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("max_attempts", "many", "Max attempts: 'many' is not a whole number"),
        ("default_ttl", "1y", "Default TTL: '1y' is no"),
        ("partitions", "all", "Partitions: 'all' is not a whole number, nor auto"),
    ],
)
def test_what_is_no_option_is_named(name: str, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        changed_options(texts_of(SET), texts_of(SET) | {name: text})


@pytest.mark.parametrize("milliseconds", [0, 1, 999, 1000, 1500, 60_000, 90_000, 3_600_000, 86_400_000])
def test_written_durations_are_read_again(milliseconds: int) -> None:
    assert duration_s(written_ms(milliseconds)) == milliseconds / 1000
    assert (written_ms(90_000), written_ms(120_000), written_ms(1500)) == ("90s", "2m", "1500ms")
