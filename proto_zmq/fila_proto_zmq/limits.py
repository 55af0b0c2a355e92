"""Every bound of the protocol in one place, each with its reason. Units come last in a name."""

from typing import Final

QUEUE_NAME_BYTES_MAX: Final = 200
"""Of ``[A-Za-z0-9._-]``, optionally ``namespace/queue``; ``.dlq`` of a dead letter queue comes on top. A name is a routing
key, copied with every frame."""

PARTITIONS_MAX: Final = 256
"""Of a queue. A consumer that finds nothing asks each of them."""

FAIRNESS_KEY_BYTES_MAX: Final = 1024
"""UTF-8, at least 1: long enough for the path of a tenant. Each active key is in memory once."""

HEADERS_BYTES_MAX: Final = 64 * 1024
"""Packed headers: hooks decode them inside the scheduler's turn, payloads never."""

ERROR_TEXT_BYTES_MAX: Final = 4 * 1024
"""The text of a nack: it travels with the message. Of a longer one the end is kept, where a stack trace names the cause."""

METADATA_BYTES_MAX: Final = 64 * 1024
"""The bytes that one attempt leaves for the next: progress, not payload."""

FRAME_MESSAGES_MAX: Final = 10_000
"""Envelopes in one Enqueue: a frame is one piece of a worker's turn, and turns must stay short."""

FRAME_BYTES_MAX: Final = 8 * 1024 * 1024
"""Where clients split batches. A single larger message still travels alone, up to the broker's payload limit."""

ENVELOPE_OVERHEAD_BYTES: Final = HEADERS_BYTES_MAX + 64 * 1024
"""The bytes that one message may add to its payload on the wire. A frame with more than max_payload_bytes, FRAME_BYTES_MAX
and this costs the connection."""

FENCES_MAX: Final = 10_000
"""Leases in one Settle, Extend or Goodbye, and members that they name by index. Ack the rest before a Goodbye."""

DELIVERY_MESSAGES_MAX: Final = 500
"""Messages in one Delivered: enough to amortise a frame, few enough to spread over consumers."""

DELIVERY_BYTES_MAX: Final = 1024 * 1024
"""Bytes of records in one Delivered, unless its first message alone is larger."""

PREFETCH_MAX: Final = 100_000
"""Unsettled messages of one subscription, and ``count`` of a Receive; at least 1. The worker keeps each of them in memory."""

HELD_MAX: Final = 2 * PREFETCH_MAX
"""Leases in ``renew`` and ``holds`` of one Subscribe or Unsubscribe: those that it may hold, and as many that end then."""

WAIT_MS_MAX: Final = 24 * 3600 * 1000
"""A day: how long one receive may wait."""

DELAY_MS_MAX: Final = 10 * 366 * 24 * 3600 * 1000
"""Ten years, also for ``after_ms``, and for ``due_ms`` from now: a later date is a mistake in the unit."""

LEASE_MS_MAX: Final = 12 * 3600 * 1000
"""Twelve hours for visibility timeouts and extensions, as in SQS."""

LEASE_MS_MIN: Final = 1
"""The shortest visibility timeout."""

RESERVATION_MS_MIN: Final = 1000
"""The shortest timeout of a reservation: with a shorter one a reader could not renew in time."""

RESERVATION_BYTES_MAX: Final = 200
"""A reservation's name: a query's id and a batch's number, with room to spare."""

RESERVATION_PARTS_MAX: Final = 2**31
"""One part for each delivery."""

PRIORITY_MIN: Final = -(2**31)
"""Most urgent."""

PRIORITY_MAX: Final = 2**31 - 1
"""Least urgent."""

WEIGHT_MAX: Final = 1_000_000
"""A turn serves ``weight`` messages before the next key has its turn: with a larger weight the other keys would starve."""

COST_MILLI_DEFAULT: Final = 1000
"""One token."""

COST_MILLI_MAX: Final = 1_000_000_000
"""A million tokens: one delivery that costs as much as a million others. At least 1."""

THROTTLE_KEYS_MAX: Final = 16
"""Throttle keys of one message: the tokens of all of them are granted together."""

THROTTLE_KEY_BYTES_MAX: Final = 256
"""UTF-8, at least 1, no NUL at the start."""

DEDUP_ID_BYTES_MAX: Final = 256
"""UTF-8."""

MAX_ATTEMPTS_MAX: Final = 2**31 - 1
"""Deliveries of a message, at least 1: a record counts its failed attempts in 32 bits."""

IN_FLIGHT_MAX: Final = 2**31 - 1
"""Messages of a fairness key, or of a queue, that are out at a time, at least 1."""

DEDUP_WINDOW_MS_MAX: Final = 7 * 24 * 3600 * 1000
"""A week: a job that failed on a Friday may run again on Monday. At least 1, 0: the broker's. Its ids are on disk."""

TTL_MS_MAX: Final = DELAY_MS_MAX
"""Ten years."""

CONFIG_KEY_BYTES_MAX: Final = 512
"""UTF-8, at least 1, no control characters."""

CONFIG_VALUE_BYTES_MAX: Final = 64 * 1024
"""UTF-8."""

CONFIG_KEYS_MAX: Final = 100_000
"""Each shard has all of the runtime config in memory."""

CONFIG_BYTES_MAX: Final = 16 * 1024 * 1024
"""Keys and values together: a worker that comes back gets all of them."""

TEMPLATES_MAX: Final = 1000
"""Queue templates of a cluster: each shard has all of them in memory."""

PARTITIONED_QUEUES_MAX: Final = 10_000
"""Queues with partitions of a cluster: each shard has the options of all of them in memory."""

TEMPLATE_BYTES_MAX: Final = 640 * 1024
"""A template as JSON: two scripts and some numbers."""

SCRIPT_BYTES_MAX: Final = 256 * 1024
"""A hook script: a policy, not a program."""

LUA_TIMEOUT_MS_MAX: Final = 1000
"""At least 1. A hook runs inside the scheduler's turn, and leases must end within a second of their time."""

LUA_MEMORY_LIMIT_BYTES_MIN: Final = 64 * 1024
"""The memory that Lua itself needs, and a little more."""

LUA_MEMORY_LIMIT_BYTES_MAX: Final = 256 * 1024 * 1024
"""The memory of one queue's hooks."""

BROWSE_MESSAGES_MAX: Final = 1000
"""Messages on one page, of a view too; at least 1."""

EXPLAINED_KEYS_MAX: Final = 2000
"""Fairness keys of a queue that ``why`` examines; the others count as alike."""

VIEW_QUEUES_MAX: Final = 10_000
"""Queues of one view. The permission on each is checked before anything else."""

LIST_QUEUES_MAX: Final = 4000
"""Queues on one page of a list. A page takes some milliseconds of a worker's turn."""

LIST_SCHEDULES_MAX: Final = 1000
"""Schedules on one page of a list, some 300 bytes each."""

LIST_THROTTLES_MAX: Final = 1000
"""Throttle keys on one page of a list: each is looked up on each shard."""

THROTTLE_USERS_SHOWN: Final = 20
"""Leased messages of one throttle key that are named, and fairness keys that wait for it."""

SCHEDULE_INTERVAL_MS_MIN: Final = 1000
"""A second: what comes more often is a rate, not a schedule."""

SCHEDULE_INTERVAL_MS_MAX: Final = 366 * 24 * 3600 * 1000
"""A year: a longer one is a mistake in the unit."""

SCHEDULE_JITTER_MS_MAX: Final = 24 * 3600 * 1000
"""A day."""

CRON_BYTES_MAX: Final = 200
"""A cron expression, at least 1."""

TIME_ZONE_BYTES_MAX: Final = 100
"""The name of a time zone, at least 1."""

ACTS_LISTED_MAX: Final = 1000
"""Administrative acts in one answer; at least 1."""

CONNECTIONS_LISTED_MAX: Final = 500
"""Connections on one page; at least 1. Workers search their consumers for each of them."""

CONFIG_EDITS_LISTED_MAX: Final = 100
"""Changes of the runtime config on one page; at least 1."""

VIEW_BYTES_MAX: Final = 200
"""A view's name, UTF-8, at least 1."""

VIEW_IDLE_MS_MIN: Final = 1000
"""With a shorter one a view could be closed between two pages."""

VIEW_IDLE_MS_MAX: Final = 3600 * 1000
"""An hour: a view that no one reads any more keeps what it shows on the disk."""

SHARDS_MAX: Final = 4096
"""A message id carries its shard in 12 bits."""

API_KEYS_BYTES_MAX: Final = 4 * 1024 * 1024
"""All API keys of a cluster with several routers together: they travel and are stored whole, and are some 200 bytes each."""
