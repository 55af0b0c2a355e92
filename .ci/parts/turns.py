"""The picture of turns: who is served when, by arrival and by the broker. The broker's order is what the broker does."""

from collections.abc import Iterator

from fila_cluster import Message
from fila_cluster.testing import broker

SENT = (("globex", 16), ("acme", 5), ("bolt", 1))
"""How many messages each tenant sends, one tenant after the other."""
COLOURS = {"globex": "#c2571a", "acme": "#2f7ed8", "bolt": "#2e9e5b"}
STEP_S, REST_S = 0.5, 3.0
LEFT, BOX = 150, 26


def svg() -> str:
    """Return an animated picture, which stands still where animations are not shown."""
    messages = [Message(b"", fairness_key=tenant) for tenant, count in SENT for _ in range(count)]
    with broker() as fila:
        fila.create_queue("turns")
        fila.enqueue_many("turns", messages)
        deliveries = fila.receive("turns", len(messages))
        fila.ack(deliveries)
        served = [delivery.fairness_key for delivery in deliveries]
    arrived = [tenant for tenant, count in SENT for _ in range(count)]
    width = LEFT + BOX * len(served) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 170" font-family="system-ui, sans-serif" font-size="14">',
        "<title>Three tenants send 16, 5 and 1 messages. By arrival the last one is served last, by turns it is third.</title>",
        '<g fill="#808080">',
        '<text x="10" y="63">by arrival</text>',
        '<text x="10" y="123">by turns</text>',
        "</g>",
    ]
    for place, (tenant, count) in enumerate(SENT):
        x = LEFT + place * 190
        lines += [f'<rect x="{x}" y="10" width="14" height="14" rx="2" fill="{COLOURS[tenant]}"/>']
        lines += [f'<text x="{x + 20}" y="22" fill="#808080">{tenant} sends {count}</text>']
    lines += [*_track(arrived, 44), *_track(served, 104)]
    lines += [f'<text x="{LEFT}" y="158" fill="#808080">served first → last</text>', "</svg>"]
    return "\n".join(lines) + "\n"


def _track(tenants: list[str], y: int) -> Iterator[str]:
    """Yield the boxes of a line, which appear one after the other, again and again."""
    lasts = STEP_S * len(tenants) + REST_S
    for place, tenant in enumerate(tenants):
        at = STEP_S * place / lasts
        yield (
            f'<rect x="{LEFT + place * BOX}" y="{y}" width="{BOX - 4}" height="{BOX + 2}" rx="3" fill="{COLOURS[tenant]}">'
            f'<animate attributeName="opacity" values="0.15;0.15;1;1" keyTimes="0;{at:.4f};{at + 0.01:.4f};1" dur="{lasts:g}s" '
            'repeatCount="indefinite"/></rect>'
        )
