"""Figures that the text between the tables names. Each phrase stands in its page with the value that the code has."""

from fila_cluster.client.calls.backlog import IDS_MAX
from fila_cluster.client.io.inside import PATIENCE_S
from fila_cluster.ops.top.columns import KEYS, QUEUES, WORKERS
from fila_cluster.testing.plugin import WAIT_S_MAX
from fila_proto_zmq import limits
from fila_proto_zmq.commands import OTHER_KEYS, Verb
from fila_proto_zmq.events import TEXT_MAX
from fila_proto_zmq.frames import ERROR, REPLY, VERSION
from fila_proto_zmq.record import EXTENDED, FIXED_BYTES, LAYOUT_VERSION, Extension
from fila_router.core.limits import DEFAULTS as ROUTER
from fila_router.core.membership import START_MS_MAX
from fila_worker.core.inspect.views import AT_REST_MS, NEEDED_MS
from fila_worker.core.measures import SPAN_MS
from fila_worker.core.metrics.describe import CONSUMERS_SHOWN_MAX
from fila_worker.core.metrics.meter import KEYS_LOOKED_AT_MAX, QUEUES_SHOWN_MAX, THROTTLES_LOOKED_AT_MAX, THROTTLES_SHOWN
from fila_worker.core.metrics.top_keys import KEYS_SHOWN
from fila_worker.core.model.token_client import LIVE_MS, REPEAT_MS
from fila_worker.core.settings import ShardSettings
from fila_worker.transport.router_links import PULSE_MS

_SHARD = ShardSettings()
_LIMITS = _SHARD.limits
_TITLES = [*(each.title for each in QUEUES), *(each.title for each in KEYS), *(each.title for each in WORKERS)]
_CELLS = {column.title: column.screen_cells for column in QUEUES}

PHRASES = {
    "testing.md": [f"after {PATIENCE_S:g} s without a delivery", f"seconds at once ({WAIT_S_MAX:g})"],
    "logs.md": [f"cut after {TEXT_MAX} characters"],
    "metrics.md": [
        f"its {QUEUES_SHOWN_MAX:,} busiest queues",
        f"up to {KEYS_LOOKED_AT_MAX:,} fairness keys",
        f'`fairness_key="{OTHER_KEYS}"`',
        f"the {KEYS_SHOWN} keys with the most messages",
        f"its {THROTTLES_SHOWN} busiest of (at most) the first {THROTTLES_LOOKED_AT_MAX:,} that have one",
    ],
    "protocol.md": [
        f"The wire protocol, version {VERSION}",
        f"replies: `{REPLY}` REPLY; errors: `{REPLY | ERROR}` REPLY + `{ERROR}` ERROR",
        *(f"| {verb.value} | {verb.name} |" for verb in Verb),
        f"{FIXED_BYTES} bytes",
        f"flags & 0x{EXTENDED:04x}",
        f"is the record's layout, {LAYOUT_VERSION}",
        *(f"`{name}`" for name in Extension.__struct_fields__),
        f"the last {_LIMITS.finished_leases_max:,} finished leases",
        f"at most {_LIMITS.redrive_messages_max:,} messages at a time",
        f"With `ids`, at most {IDS_MAX:,}",
        f"at most {limits.DELIVERY_MESSAGES_MAX} messages",
        f"at most {limits.BROWSE_MESSAGES_MAX:,} messages",
        f"within the dedup window ({_SHARD.dedup_window_ms // 60_000} minutes",
        f"`cost_milli` (int, absent: {limits.COST_MILLI_DEFAULT})",
        f"or for {START_MS_MAX // 1000} s.",
        f"Pulse every {PULSE_MS} ms",
        f"not answered for {REPEAT_MS} ms",
        f"`consumer_timeout_ms` ({_SHARD.consumer_timeout_ms // 1000} s)",
        f"{_SHARD.max_payload_bytes:,} bytes by default",
        f"the last {limits.ERROR_TEXT_BYTES_MAX:,} bytes",
        f"beyond {ROUTER.calls_max:,} open requests, or {ROUTER.in_flight_bytes_max // 2**20} MiB of them",
        f"A shard has at most {_LIMITS.views_max}:",
        f"after {NEEDED_MS // 1000} s without use",
        f"after {AT_REST_MS // 1000} s if",
        f"up to {CONSUMERS_SHOWN_MAX} of its consumers",
        f"looks at no more than {_LIMITS.view_examined_messages_max:,} messages and keys",
        f"Split batches at {limits.FRAME_BYTES_MAX // 2**20} MiB",
    ],
    "top.md": [
        *{title.split()[0] for title in _TITLES},
        f"`ack/s` (under {_CELLS['ack/s']} columns), `shard` ({_CELLS['shard']}) and the bars ({_CELLS['depth']})",
    ],
    "autoscaling.md": [f"more than {limits.EXPLAINED_KEYS_MAX:,} fairness keys"],
    "why.md": [
        f"At most {limits.EXPLAINED_KEYS_MAX:,} keys are looked at",
        f"not read for {LIVE_MS // 1000} seconds",
        f"the last {SPAN_MS // 1000} seconds",
    ],
}


def missing(page: str, text: str) -> list[str]:
    """Return the phrases that a page lacks."""
    flowing = " ".join(text.split())
    return [phrase for phrase in PHRASES.get(page, []) if phrase not in flowing]
