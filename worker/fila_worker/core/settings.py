"""What a shard is configured with: what users set, and the bounds that they have no reason to set."""

from dataclasses import dataclass, field

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Counts, bytes and milliseconds; the unit is the last word but ``max`` or ``min`` of a name."""

    # leases and acked messages
    finished_leases_max: int = 8192
    """Finished leases that are remembered, so that a repeated settlement gets its first answer again."""
    acked_messages_max: int = 8192
    """Acked messages that lie on disk before they are purged together: their bookkeeping is memory, and a restart reads it."""
    acked_bytes_max: int = 32 * MIB
    """The same in bytes: a few large messages are worth a purge."""
    acked_leases_max: int = 2048
    """The same in leases: each has a record that a restart reads."""
    acked_lanes_max: int = 4096
    """The same in lanes that they are of: a purge and the counts after it take some 4 µs for each."""
    range_messages_min: int = 8
    """Neighbouring messages that are worth a range tombstone: it costs what two single deletes do, and readers pay for it."""
    turn_expiries_max: int = 2000
    """Messages whose leases may expire in one turn, and the rest of the last lease; the others follow in the next."""
    unseen_messages_max: int = 1000
    """Messages of lost pushes that are given back in one turn, and the rest of the last lease; the others follow in the next."""

    # the ledger
    ledger_counts_max: int = 16_384
    """Lane counts in ledger entries before a fold: bounds what recovery replays (twice as many, while a fold is in progress)."""
    ledger_entries_max: int = 8192
    """Ledger entries before a fold: the same for turns that change few lanes."""
    ledger_fold_lanes_min: int = 512
    """Lanes that a step of a fold takes, and as many as changed meanwhile: some 4 µs each with their writes."""
    ledger_fold_lanes_max: int = 2048
    """The same at most: a purge changes many lanes in one turn, and later steps make up for it."""

    # lanes and queues
    returns_max: int = 10_000
    """Clients of full queues whose time to come again is remembered, some 200 bytes each."""
    lane_disorder_messages_max: int = 4096
    """Messages out of order that a lane may hold before all but the first half of them go back to disk."""
    refill_messages_max: int = 512
    """What one refill of a lane reads: enough to forget the cost of a seek, little enough for thousands of lanes."""
    refill_bytes_max: int = 256 * 1024
    """The same in bytes."""
    idle_lanes_max: int = 10_000
    """Lanes without messages that a queue remembers, for their keys' weights and counters."""
    priorities_max: int = 64
    """Different priorities of a queue that are remembered, to find a message by its id; with more, its lanes are read."""

    # fairness keys
    key_table_part_max: int = 250_000
    """Fairness keys in one part of a queue's table: a dictionary that grows moves all that is in it, 10 ms for 175,000."""

    # cold keys
    warm_lanes_max: int = 100_000
    """Lanes of fairness keys that are objects in memory, 1 KiB each with a message; beyond it keys far from their turns are cooled down. To warm up one
    costs as much as to deliver its message, so this many keys with a backlog are spared it."""
    warm_small_lanes_max: int = 100_000
    """The same for lanes with a single message. What is cold must be warmed up for its one delivery, some 15 µs with the read: fewer here would
    save little memory and slow down a queue with so many keys."""
    warm_ahead_max: int = 64
    """Cold keys that are warmed up at once when one of them has its turn: reading many messages costs little more than one."""
    cool_steps_min: int = 32
    """Warm lanes that are looked at in a turn, at least, while there are too many: some microseconds."""

    # fairness
    busy_wait_turns_max: int = 1000
    """Turns while a busy key waits, if new keys have them: a flood of one-message tenants must not starve the others."""
    fresh_turns_max: int = 100
    """Turns of new keys in a row before a busy one is let in: its round may well take longer than it may wait, and a new key
    must never wait for all of it."""
    void_entries_max: int = 1000
    """Void entries that a ring may hold of keys that owed and left, or as many as of those that owe."""

    # delivery
    turn_messages_max: int = 2000
    """Deliveries in one turn; a large one counts for several (``delivery.WEIGHT_BYTES``)."""
    queue_turn_messages_min: int = 100
    """What a queue may deliver in a turn at least, however many others want to; beyond that they share the turn."""

    # what is due
    turn_due_max: int = 1000
    """Entries that may come due in one turn; the rest follow in the next, so that no turn is long."""
    due_note_bytes_max: int = 64 * 1024
    """Notes of entries that come due in one turn, more or less: what they list is work, too."""
    due_read_bytes_max: int = 8 * MIB
    """Messages that one turn reads because they are due: large ones would make it long, and its batch large."""
    due_read_messages_max: int = 16
    """Messages that are read at once because they are due, so that a piece of large ones is not too large either."""
    dedup_entry_ids_max: int = 500
    """Dedup ids that one entry of the due index lists: its note is read and acted upon as a whole."""

    # other shards and the bank
    transfer_messages_max: int = 100
    """Messages that one frame carries to another shard."""
    transfer_bytes_max: int = 1 * MIB
    """The same in bytes, and one message more."""
    transfer_repeat_ms: int = 1000
    """When an unconfirmed batch is sent again: the other shard, or the router, was away."""
    past_streams_max: int = 16
    """Streams of a shard that are remembered though nothing more can come of them: a frame may have been long under way."""
    appointment_wait_ms_max: int = 3000
    """How long a command waits for another shard's word: less than the usual timeout of a client."""
    rate_wait_ms_max: int = 4000
    """How long an enqueue waits for the bank's word on its namespace's rate: just below the usual timeout of a client."""

    # commands in steps
    purge_lanes_max: int = 1000
    """Lanes that are emptied at once without reading; a queue with more is emptied in steps."""
    purge_messages_max: int = 10_000
    """What a step of a purge reads, so that no turn is long."""
    purge_bytes_max: int = 4 * MIB
    """The same in bytes."""
    purge_look_messages: int = 20
    """To begin to read somewhere is as dear as reading so many messages."""
    redrive_messages_max: int = 1000
    """Messages that one redrive moves, so that no turn is long: callers repeat it."""
    redrive_look_messages_max: int = 10_000
    """Messages of a key that one redrive looks at for dead letters, in a queue that has other messages too."""
    redrive_places_max: int = 100_000
    """Places that one redrive looks at for the messages it names, about 1 µs each; for the first one as many as it takes."""

    recovery_records_max: int = 1000
    """Records that a step of a recovery reads: some 10 ms, for the other shards of the process go on between steps."""

    # caches and views
    reserved_bytes_max: int = 16 * MIB
    """Records of reserved messages that are kept for whoever fetches them."""
    browse_cursors_max: int = 10_000
    """Ends of browsed pages that are remembered, some 200 bytes each."""
    views_max: int = 16
    """Views open at a time: their disk space, and a few MiB of memory each."""
    view_examined_messages_max: int = 10_000
    """Messages that are looked at for one page of a view, so that no turn is long."""
    view_wait_ms_max: int = 2000
    """How long an opening waits until a pin would keep little memory: a disk may be slow, and a client waits for 5 s. Then it is opened as it is."""
    view_names_at_once: int = 2000
    """Names of keys that an opening puts in order in one go: a millisecond."""
    view_keys_max: int = 10_000
    """Fairness keys that are looked at for one page of a view."""
    view_ranges_max: int = 1000
    """Ranges that a view of a queue is divided into."""

    # work in steps
    turn_effort: int = 6_000
    """Effort of a turn that commands and jobs may cause, beside deliveries and what is due; about 2 µs a unit, so 12 ms on a quiet machine."""
    step_effort: int = 500
    """Effort after which a job lets others go on: a fraction of a turn, and enough to forget the cost of a step."""
    jobs_max: int = 4096
    """Jobs of a shard that are open at a time."""
    client_jobs_max: int = 256
    """The same for each client; a client's jobs go on one after the other."""
    jobs_bytes_max: int = 64 * 1024 * 1024
    """Messages of enqueues that are jobs, in all."""
    enqueue_step_messages: int = 500
    """Messages of a large enqueue that are stored in one step."""
    enqueue_ms_max: int = 4000
    """How long an enqueue may take before it is answered with what is stored: just below the usual timeout of a client."""
    walk_keys_max: int = 65_536
    """Keys of a queue that a walk over all of them copies at once: half a MiB for each walk, and there are few portions to skip others for."""
    paused_keys_max: int = 10_000
    """Paused fairness keys of a queue: its record lists them, and is written whenever one changes."""
    stats_keys_max: int = 2500
    """Fairness keys in one page of a queue's statistics: some 10 ms, and a third of a MiB of an answer."""
    turn_waits_max: int = 2000
    """Receives whose time is up that are answered in one turn."""


DEFAULTS = Limits()
"""For what is made outside a shard."""


BUFFER_BYTES = 48 * 1024 * 1024
"""Records of pending messages that a shard keeps in memory; what does not fit is read back when its turn comes."""


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """Times in milliseconds, sizes in bytes; ``quantum`` in units of cost. A limit of None is none."""

    quantum: int = 1000
    visibility_timeout_ms: int = 30_000
    consumer_timeout_ms: int = 15_000
    max_payload_bytes: int = 16 * 1024 * 1024
    buffer_bytes: int = BUFFER_BYTES
    max_queue_messages: int | None = None
    max_queue_bytes: int | None = None
    max_key_messages: int | None = None
    max_keys_per_queue: int = 1_000_000
    min_free_disk_bytes: int = 0
    dedup_window_ms: int = 300_000
    lua_timeout_ms: int = 10
    lua_memory_limit_bytes: int = 1024 * 1024
    lua_breaker_threshold: int = 3
    lua_breaker_cooldown_ms: int = 10_000
    limits: Limits = field(default_factory=Limits)
