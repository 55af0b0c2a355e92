"""What config keys mean."""

import pytest

from fila_cluster.ops.dashboard.config import FREE_TEXT, meaning


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("throttle:a:b:rate", "tokens a second for throttle key a:b"),
        ("throttle:mail:burst", "tokens that throttle key mail may save up"),
        ("throttle:mail:concurrency", "messages with throttle key mail that may be leased at a time"),
        ("throttle:mail:rate_min", "the least rate of throttle key mail after deferrals"),
        ("namespace:eu:max_enqueues_per_minute", "messages a minute into the queues eu/…"),
        ("weight:gold", FREE_TEXT),
        ("rate", FREE_TEXT),
    ],
)
def test_each_key_says_what_it_is_for(key: str, meant: str) -> None:
    assert meaning(key) == meant
