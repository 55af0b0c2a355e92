from fila_cluster.client.views import ThrottleStats
from fila_cluster.ops.analysis.attention import Concern
from fila_cluster.ops.analysis.rates import Rates
from fila_cluster.ops.top.board import KEYS_LINE, banner, throttled, urgent
from fila_cluster.ops.top.dialogs import HELP
from fila_cluster.ops.top.poller import Picture, Summary


def picture(*concerns: Concern, rates: Rates | None = None, shards_up: int = 6) -> Picture:
    most = 999_900
    return Picture(
        Summary("0.1.0", 7300.0, 6, 5, 6, shards_up, 1000, most, most, most, most, most, rates), [*concerns], [], []
    )


WORST = Concern("critical", "shard_down", "shard 1 waits", "wait")
MILD = Concern("info", "dead_letters", "orders has 3 dead letters", "redrive")


def test_four_lines_that_fit_a_small_terminal():
    lines = banner(picture(rates=Rates(99_999, 99_999, 99_999, 99_999)), "", "tcp://127.0.0.1:5555", 0.5).plain.split("\n")
    assert lines[0] == "fila-cluster 0.1.0  tcp://127.0.0.1:5555  up 2h  every 0.5s"
    assert lines[1] == "workers 5/6  queues 1,000  depth 1.00M  leased 1.00M  delayed 1.00M  dead 1.00M"
    assert lines[2] == "enqueued 100k/s  delivered 100k/s  acked 100k/s  nacked 100k/s"
    assert max(map(len, lines)) <= 80


def test_sums_without_all_shards_say_so():
    line = banner(picture(shards_up=5), "", "tcp://x:1", 0.5).plain.split("\n")[1]
    assert line == "shards 5/6:  queues 1,000  depth 1.00M  leased 1.00M  delayed 1.00M  dead 1.00M"
    assert len(line) <= 80


def test_rates_that_are_not_known_are_not_shown():
    assert "/s" not in banner(picture(), "", "tcp://x:1", 2.0).plain


def test_without_an_answer_it_shows_why_and_no_number():
    text = banner(None, "no broker answers\nat all", "tcp://x:1", 2.0).plain
    assert text == "fila-cluster  tcp://x:1  every 2s\n‼ broker is down: no broker answers�at all"


def test_the_most_urgent_is_shown_with_the_number_of_others():
    assert urgent([WORST, MILD]).plain == "‼ (+1: press 4) shard 1 waits"
    assert urgent([WORST]).plain == "‼ (press 4) shard 1 waits"
    assert urgent([MILD]).plain == "✓ nothing is wrong, 1 worth knowing: press 4"
    assert urgent([]).plain == "✓ nothing is wrong"


def test_the_emptiest_buckets_are_shown():
    full = [ThrottleStats(f"key-{number}", 5.0, 10.0, 10.0) for number in range(5)]
    lines = throttled([*full, ThrottleStats("empty", 2.5, 10.0, 0.0), ThrottleStats("none", 0.0, 0.0, 0.0)]).plain.split("\n")
    assert lines[0] == "throttle empty  2.5/s  0.0 of 10 tokens"
    assert lines[1] == "throttle none  0/s  0.0 of 0 tokens"
    assert lines[3] == "throttle key-1  5/s  10.0 of 10 tokens  (+3 throttle keys)"
    assert throttled([]).plain == ""


def test_what_the_keys_do_fits_a_small_terminal():
    assert len(KEYS_LINE) <= 80
    assert max(map(len, HELP.splitlines())) <= 76
    assert len(HELP.splitlines()) <= 22
