"""Every bound of the protocol in one place, each with its reason. Units come last in a name."""

from typing import Final

QUEUE_NAME_BYTES_MAX: Final = 200
"""The whole name, namespace included: it is a routing key, copied with every frame."""

FAIRNESS_KEY_BYTES_MAX: Final = 1024
"""Long enough for any tenant path; a key is held in memory once per active group."""

HEADERS_BYTES_MAX: Final = 64 * 1024
"""Headers are decoded by hooks inside the scheduler's turn; payloads never are."""

ERROR_TEXT_BYTES_MAX: Final = 4 * 1024
"""A nack's error travels with the message; a stack trace's tail is enough, the rest is cut."""

METADATA_BYTES_MAX: Final = 64 * 1024
"""What one attempt leaves for the next: progress, not payload."""

FRAME_MESSAGES_MAX: Final = 10_000
"""Messages in one enqueue frame: one frame is one piece of a worker's turn, and turns must stay short."""

FRAME_BYTES_MAX: Final = 8 * 1024 * 1024
"""Where clients split batches. A single larger message still travels alone, up to the broker's payload limit."""

ENVELOPE_OVERHEAD_BYTES: Final = HEADERS_BYTES_MAX + 64 * 1024
"""What one message may add to its payload on the wire: headers, scheduling options, framing."""

FENCES_MAX: Final = 10_000
"""Leases in one Settle or Extend, and members that they name by index: as many as an Enqueue has messages, for the same reason."""

DELIVERY_MESSAGES_MAX: Final = 500
"""Messages in one delivery frame: enough to amortise a frame, few enough to spread over consumers."""

DELIVERY_BYTES_MAX: Final = 1024 * 1024
"""Record bytes in one delivery frame, unless its first message alone is larger."""

PREFETCH_MAX: Final = 100_000
"""Unsettled messages one subscription may hold: the worker keeps each of them in memory."""

HELD_MAX: Final = 2 * PREFETCH_MAX
"""Leases that a client names in one frame of a subscription: one for each message that it may hold, and as many that end meanwhile."""

WAIT_MS_MAX: Final = 24 * 3600 * 1000
"""How long one receive may wait."""

DELAY_MS_MAX: Final = 10 * 366 * 24 * 3600 * 1000
"""Ten years: a later date is a mistake in the unit."""

LEASE_MS_MAX: Final = 12 * 3600 * 1000
"""The longest visibility timeout and lease extension, as in SQS."""

LEASE_MS_MIN: Final = 1

RESERVATION_MS_MIN: Final = 1000
"""Below it a reader could not renew what it reserved in time."""

RESERVATION_BYTES_MAX: Final = 200
"""A reservation's name: a query's id and a batch's number, with room to spare."""

RESERVATION_PARTS_MAX: Final = 2**31
"""One for each delivery."""

PRIORITY_MIN: Final = -(2**31)
PRIORITY_MAX: Final = 2**31 - 1
WEIGHT_MAX: Final = 1_000_000
"""A turn serves ``weight`` messages before the next key is looked at; more than this is starvation."""

COST_MILLI_DEFAULT: Final = 1000
COST_MILLI_MAX: Final = 1_000_000_000
"""A million: one delivery that pays for a million of others."""

THROTTLE_KEYS_MAX: Final = 16
"""Token buckets that one message may draw on: all of them must be asked together."""

THROTTLE_KEY_BYTES_MAX: Final = 256

DEDUP_ID_BYTES_MAX: Final = 256

DEDUP_WINDOW_MS_MAX: Final = 7 * 24 * 3600 * 1000
"""A week: a job that failed on a Friday may be run again on Monday. Every id of the window is on disk."""

TTL_MS_MAX: Final = DELAY_MS_MAX

CONFIG_KEY_BYTES_MAX: Final = 512
CONFIG_VALUE_BYTES_MAX: Final = 64 * 1024
CONFIG_KEYS_MAX: Final = 100_000
"""Every shard holds all of the runtime config in memory."""
CONFIG_BYTES_MAX: Final = 16 * 1024 * 1024
"""Keys and values of all of it: a worker that comes back gets it in one frame."""

SCRIPT_BYTES_MAX: Final = 256 * 1024
"""A hook script: policy, not a program."""

LUA_TIMEOUT_MS_MAX: Final = 1000
"""A hook runs inside the scheduler's turn; a lease's expiry must be honoured within a second."""

LUA_MEMORY_LIMIT_BYTES_MIN: Final = 64 * 1024
"""What Lua itself needs, and a little."""

LUA_MEMORY_LIMIT_BYTES_MAX: Final = 256 * 1024 * 1024

BROWSE_MESSAGES_MAX: Final = 1000
"""Messages on one page."""

LIST_QUEUES_MAX: Final = 4000
"""Queues on one page of a list: some milliseconds of a worker's turn."""

VIEW_BYTES_MAX: Final = 200
"""A view's name."""

VIEW_IDLE_MS_MIN: Final = 1000
"""Below it a view could be closed between two pages."""

VIEW_IDLE_MS_MAX: Final = 3600 * 1000
"""What a view that everybody forgot may hold on to the disk for."""

SHARDS_MAX: Final = 4096
"""A message id carries its shard in 12 bits."""
