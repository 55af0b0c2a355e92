"""Names of Celery as names of the broker: usual ones stay, no two become one."""

from hypothesis import given
from hypothesis import strategies as st

from fila_cluster.celery.exchanges import Names
from fila_cluster.client.checks import queue_name


def test_usual_names_stay() -> None:
    assert Names("").queue("celery") == "celery"
    assert Names("shop").queue("high-priority_1.x") == "shop/high-priority_1.x"


def test_what_a_name_may_not_have_is_written_in_hexadecimal() -> None:
    assert Names("").queue("celery@host.celery.pidbox") == "celery.x40host.celery.pidbox"
    assert Names("").exchange("celery.pidbox") == "kombu.exchange.celery.pidbox"


@given(st.lists(st.text(st.sampled_from("ax.4@é0/"), min_size=1, max_size=12), min_size=2, max_size=2, unique=True))
def test_different_names_stay_different(names: list[str]) -> None:
    first, second = map(Names("").queue, names)
    assert first != second


@given(st.text(min_size=1, max_size=400), st.sampled_from(["", "shop"]))
def test_the_broker_takes_every_name(name: str, namespace: str) -> None:
    assert queue_name(Names(namespace).queue(name))
    assert queue_name(Names(namespace).exchange(name))
