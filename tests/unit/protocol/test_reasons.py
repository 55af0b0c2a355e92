"""The catalogue of reasons for waiting."""

from fila_proto_zmq.reasons import MEANINGS, ReasonCode


def test_every_code_has_its_meaning_in_the_order_of_the_codes():
    assert list(MEANINGS) == list(ReasonCode)


def test_every_meaning_says_enough():
    assert [code for code, meaning in MEANINGS.items() if len(meaning.text) < 20] == []
