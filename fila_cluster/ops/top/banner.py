"""The lines above and below the lists: the cluster in numbers, the most urgent concern, the keys."""

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from fila_cluster.client.views import ThrottleStats
from fila_cluster.ops.analysis.attention import Concern
from fila_cluster.ops.top.columns import BAD, FAINT, GOOD, SEVERITY_STYLES, aged, counted, printable, rated
from fila_cluster.ops.top.poller import Picture, Summary

KEYS_LINE: Final = "⏎ open  / filter  ←→ sort  p pause  r resume  d redrive  w why  ? help  q quit"
THROTTLES_SHOWN: Final = 4


def banner(picture: Picture | None, why_not: str, endpoint: str, interval_s: float) -> Text:
    """Return four lines; without a picture, the reason."""
    if picture is None:
        down = Text(f"‼ broker is down: {printable(why_not)}", BAD)
        return Text("\n").join([_first(None, endpoint, interval_s), down])
    numbers = picture.summary
    return Text("\n").join(
        [_first(numbers, endpoint, interval_s), _counts(numbers), _rates(numbers), urgent(picture.concerns)]
    )


def _first(numbers: Summary | None, endpoint: str, interval_s: float) -> Text:
    line = Text().append("fila-cluster", "bold")
    if numbers is not None:
        line.append(f" {numbers.version}", "bold")
    line.append(f"  {endpoint}")
    if numbers is not None:
        line.append(f"  up {aged(numbers.uptime_s)}")
    return line.append(f"  every {interval_s:g}s", FAINT)


def _counts(numbers: Summary) -> Text:
    if numbers.shards_up < numbers.shards:  # the sums that follow are of these shards alone
        line = Text(f"shards {numbers.shards_up}/{numbers.shards}:", BAD)
    else:
        all_up = numbers.workers_up == numbers.workers
        line = Text("workers ").append(f"{numbers.workers_up}/{numbers.workers}", GOOD if all_up else BAD)
    line.append(f"  queues {counted(numbers.queues)}  depth {counted(numbers.depth)}  leased {counted(numbers.in_flight)}")
    line.append(f"  delayed {counted(numbers.delayed)}  dead ")
    return line.append(counted(numbers.dead_letters), BAD if numbers.dead_letters else "")


def _rates(numbers: Summary) -> Text:
    if numbers.rates is None:
        return Text("rates: with the next look", FAINT)
    rates = numbers.rates
    shown = {"enqueued": rates.enqueued, "delivered": rates.delivered, "acked": rates.acked, "nacked": rates.nacked}
    return Text("  ".join(f"{name} {rated(rate)}/s" for name, rate in shown.items()))


def urgent(concerns: Sequence[Concern]) -> Text:
    """Return the first concern, and how many more there are."""
    worst = concerns[0] if concerns else None
    if worst is None or worst.severity == "info":
        quiet = Text().append("✓ nothing is wrong", GOOD)
        return quiet.append(f", {len(concerns)} worth knowing: press 4", FAINT) if worst else quiet
    more = f" (+{len(concerns) - 1}: press 4)" if len(concerns) > 1 else " (press 4)"
    return Text(f"‼{more} ", SEVERITY_STYLES[worst.severity]).append(printable(worst.text), SEVERITY_STYLES[worst.severity])


def throttled(throttles: Sequence[ThrottleStats]) -> Text:
    """Return the token buckets of a queue's messages, the emptiest first."""
    emptiest_first = sorted(throttles, key=lambda each: (each.tokens / each.burst if each.burst else 0.0, each.key))
    lines = [_bucket(each) for each in emptiest_first[:THROTTLES_SHOWN]]
    hidden = len(throttles) - len(lines)
    if hidden:
        lines[-1].append(f"  (+{hidden:,} throttle keys)", FAINT)
    return Text("\n").join(lines)


def _bucket(each: ThrottleStats) -> Text:
    line = Text().append("throttle ", FAINT).append(printable(each.key)).append(f"  {each.rate:g}/s  ")
    return line.append(f"{each.tokens:.1f} of {each.burst:g} tokens", BAD if each.tokens < 1 else "")
