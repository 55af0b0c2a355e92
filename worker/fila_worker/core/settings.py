"""The settings of a shard: those of users, and bounds that users need not set."""

from dataclasses import dataclass, field

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Counts, bytes and milliseconds. The unit is the last word of a name before ``max`` or ``min``."""

    # leases and acked messages
    finished_leases_max: int = 8192
    """Finished leases that are remembered, so that a repeated settlement gets its first answer again."""
    acked_messages_max: int = 8192
    """Acked messages on disk before they are purged together: their bookkeeping takes memory, and a restart reads it."""
    acked_bytes_max: int = 32 * MIB
    """The same bound in bytes: a few large messages are worth a purge."""
    acked_leases_max: int = 2048
    """The same bound in leases: each has a record that a restart reads."""
    acked_lanes_max: int = 4096
    """The same bound in lanes of these messages: a purge and the counts after it take some 4 µs for each."""
    range_messages_min: int = 8
    """Neighbouring messages that are worth a range tombstone: it costs as much as two deletes, and makes reads dearer."""
    turn_expiries_max: int = 2000
    """Messages whose leases may expire in one turn, and the rest of the last lease. The others follow in the next turn."""
    client_subscriptions_max: int = 10_000
    subscriptions_max: int = 100_000
    """Subscriptions of one client, and of all: 400 bytes each. Those of a client are looked at when its connection closes, so a turn
    in which all connections close takes some 10 ms. Once half are taken, each client may have its part of all."""
    unseen_messages_max: int = 1000
    """Messages of lost pushes given back in one turn, and the rest of the last lease. The others follow in the next turn."""

    # the ledger
    ledger_counts_max: int = 16_384
    """Lane counts in ledger entries before a fold: recovery replays up to so many (twice as many during a fold)."""
    ledger_entries_max: int = 8192
    """Ledger entries before a fold: the same bound for turns that change few lanes."""
    ledger_fold_lanes_min: int = 512
    """Lanes in a step of a fold, beside as many as changed meanwhile: some 4 µs each with their writes."""
    ledger_fold_lanes_max: int = 2048
    """The most lanes in a step of a fold: a purge changes many lanes in one turn, which later steps make up for."""

    # lanes and queues
    usual: bool = True
    """Whether usual requests take the short way. Without it they take the general one, with the same outcome."""
    returns_max: int = 10_000
    """Clients of full queues whose date to come again is remembered, some 200 bytes each."""
    sequences_max: int = 10_000
    """Sequences of enqueues that are remembered, some 300 bytes each."""
    waste_bytes_min: int = 32 * 1024 * 1024
    """Disk space of removed messages that is not worth a rewriting of files."""
    lane_disorder_messages_max: int = 4096
    """Messages out of order that a lane may have in memory. With more, only the first half of them stays there."""
    refill_messages_max: int = 512
    """Messages that one refill of a lane reads: enough to make the seek cheap, few enough for thousands of lanes."""
    refill_messages_min: int = 16
    """The same once the turn has no effort left. Lanes that are served in turn run out in one turn."""
    refill_bytes_max: int = 256 * 1024
    """The same in bytes."""
    idle_lanes_max: int = 10_000
    """Lanes without messages that a queue remembers, for their keys' weights and counters."""
    idle_lanes_of_shard_max: int = 20_000
    """The same of all queues of a shard, 1.5 KiB each: each queue has an equal share."""
    priorities_max: int = 64
    """Different priorities of a queue that are remembered to find a message by its id. With more, its lanes are read."""

    # fairness keys
    key_table_part_max: int = 250_000
    """Fairness keys in one part of a queue's table: a growing dictionary moves all its keys, 10 ms for 175,000."""

    # cold keys
    warm_lanes_max: int = 100_000
    """Lanes of fairness keys that are objects in memory, 1 KiB each with a message. With more, keys far from their turns are
    cooled down. To warm up a key costs as much as to deliver its message, so this many keys with a backlog are spared it."""
    warm_small_lanes_max: int = 100_000
    """The same for lanes with a single message. A cold lane must be warmed up for its one delivery, some 15 µs with the read.
    A lower bound would save little memory and slow down a queue with so many keys."""
    warm_ahead_max: int = 64
    """Cold keys that are warmed up at once when one has its turn: to read many messages costs little more than one."""
    cool_steps_min: int = 32
    """The fewest warm lanes that are checked in a turn while there are too many: some microseconds."""

    # fairness
    busy_wait_turns_max: int = 1000
    """Turns that a busy key may wait while new keys have turns: a flood of one-message tenants must not starve it."""
    fresh_turns_max: int = 100
    """Turns of new keys in a row before a busy key may have one: a round of busy keys may take longer, and a new key must
    never wait for all of it."""
    void_entries_max: int = 1000
    """Void entries of keys that owed and left in a ring. There may be more of them if more keys owe, up to one for each."""

    # delivery
    turn_messages_max: int = 2000
    """Deliveries in one turn. A large one counts for several (``delivery.WEIGHT_BYTES``)."""
    queue_turn_messages_min: int = 100
    """Deliveries of a queue in a turn that do not depend on the other queues. The rest of the turn is shared."""

    # what is due
    turn_due_max: int = 1000
    """Due entries that one turn takes. The others follow in the next turn, so that no turn is long."""
    due_note_bytes_max: int = 64 * 1024
    """The notes of due entries that one turn takes, approximately: their content is work, too."""
    due_read_bytes_max: int = 8 * MIB
    """The bytes of due messages that one turn reads: large messages would make the turn long, and its batch large."""
    due_read_messages_max: int = 16
    """Due messages that are read at once, so that a piece of large messages is not too large either."""
    dedup_entry_ids_max: int = 500
    """Dedup ids in one entry of the due index: its note is read and carried out as a whole."""

    # other shards and the bank
    transfer_messages_max: int = 100
    """Messages that one frame carries to another shard."""
    transfer_bytes_max: int = 1 * MIB
    """The same bound in bytes. The last message may exceed it."""
    transfer_repeat_ms: int = 1000
    """After this time an unconfirmed batch is sent again: the other shard, or the router, was away."""
    past_streams_max: int = 16
    """Past streams of a shard that are remembered, because a frame may arrive late."""
    refusals_max: int = 1000
    """Refused messages of a stream that are remembered, because the sender may ask again after a power cut."""
    appointment_wait_ms_max: int = 3000
    """How long a command waits for another shard's answer: less than the usual timeout of a client."""
    rate_wait_ms_max: int = 4000
    """How long an enqueue waits for the bank's grant for its namespace: just below the usual timeout of a client."""

    # batches
    batches_max: int = 10_000
    """Batches whose callbacks go to queues of this shard, some 500 bytes each in memory."""
    batch_parts_max: int = 10_000
    """Pairs of a batch and a queue of this shard that has members: their counts are in memory, and the deletion of a queue
    changes all of its own in one turn."""
    batch_queues_max: int = 1000
    """Queues that one batch may have members in."""
    batch_callback_bytes_max: int = 256 * MIB
    """The callbacks of all these batches, on disk."""
    batch_open_ms_max: int = 24 * 3600 * 1000
    """How long a batch may be open: its client may have ended."""
    ended_batches_max: int = 8192
    """Batches that have ended and are remembered, so that a repeated seal gets its first answer again."""
    batch_waits_max: int = 1000
    """Pairs of a batch and a queue whose first members wait for the word of the batch's owner."""
    batch_waits_bytes_max: int = 16 * MIB
    """The messages that wait for it, or one larger enqueue."""
    batch_wait_ms_max: int = 3000
    """How long they wait: less than the usual timeout of a client."""
    batch_check_ms: int = 60_000
    """How often a shard asks about members of a batch that is open for longer than it may."""
    batch_parts_at_once: int = 500
    """Parts in one frame between shards, up to half a KiB each."""
    batch_ends_at_once: int = 50
    """Callbacks that are enqueued in one turn: each may be large, and may have a hook."""

    # commands in steps
    purge_lanes_max: int = 1000
    """Lanes that are emptied at once without reading. A queue with more is emptied in steps."""
    purge_messages_max: int = 10_000
    """Messages that a step of a purge reads, so that no turn is long."""
    purge_bytes_max: int = 4 * MIB
    """The same in bytes."""
    purge_look_messages: int = 20
    """The cost of a seek, in messages read."""
    redrive_messages_max: int = 1000
    """Messages that one redrive moves, so that no turn is long: callers repeat it."""
    redrive_look_messages_max: int = 10_000
    """Messages of a key that one redrive searches for dead letters, in a queue that has other messages, too."""
    redrive_places_max: int = 100_000
    """Places that one redrive searches for the messages that it names, about 1 µs each; without a bound for the first."""

    # schedules
    schedules_max: int = 10_000
    """Schedules of a shard, about 1 KiB of memory each."""
    schedule_bytes_max: int = 1 * MIB
    """A schedule's message: each due time stores it again. What is larger belongs elsewhere, with a reference to it."""
    schedules_bytes_max: int = 64 * MIB
    """The messages of a shard's schedules together."""
    turn_schedules_max: int = 100
    """Due times that one turn carries out, or counts, some 50 µs each."""
    turn_schedules_bytes_max: int = 4 * MIB
    """The same in bytes of messages. The last one may exceed it."""
    schedules_recovered_max: int = 200
    """Schedules that a step of a recovery reads, some 50 µs each."""
    schedule_grace_ms: int = 30_000
    """A due time that is later than this was missed in an outage. A restart takes less."""
    schedule_late_ms: int = 1000
    """A message that is later than this counts as late."""
    schedule_catch_up_max: int = 10_000
    """Due times of an outage that ``catch_up="all"`` carries out: a week of minutes."""
    schedule_skips_counted_max: int = 100
    """Skipped due times of a cron expression that are counted at once, some 40 µs each."""

    # runtime config
    config_edits_max: int = 1000
    """Changes of the runtime config that are remembered, to be shown and undone."""
    config_edits_bytes_max: int = 4 * MIB
    """The same in bytes: values may be large."""
    config_edits_at_once: int = 50
    """Remembered changes that are read at once."""
    config_edits_page_bytes_max: int = 256 * 1024
    """The bytes of one page of them, and of one more change."""

    recovery_records_max: int = 1000
    """Records that a step of a recovery reads: some 10 ms, because the other shards of the process run between steps."""

    # caches and views
    reserved_bytes_max: int = 16 * MIB
    """Records of reserved messages that are cached for their fetch."""
    browse_cursors_max: int = 10_000
    """Ends of browsed pages that are remembered, some 200 bytes each."""
    views_max: int = 16
    """Views that may be open at a time: each takes disk space, and a few MiB of memory."""
    view_examined_messages_max: int = 10_000
    """Messages that are read for one page of a view, so that no turn is long."""
    view_wait_ms_max: int = 2000
    """How long an opening waits until a pin would keep little memory: a disk may be slow, and a client waits for 5 s. Then
    the view is opened in any case."""
    view_names_at_once: int = 2000
    """Names of keys that an opening sorts at once: a millisecond."""
    view_keys_max: int = 10_000
    """Fairness keys that are read for one page of a view."""
    view_ranges_max: int = 1000
    """Ranges that a view of a queue is divided into."""

    # work in steps
    turn_effort: int = 6_000
    """The effort of commands and jobs in a turn, beside deliveries and due entries: 12 ms on a quiet machine, 2 µs a unit."""
    step_effort: int = 500
    """The effort of a job before the next one: a fraction of a turn, and enough to make the cost of a step small."""
    jobs_max: int = 4096
    """Jobs of a shard that are open at a time."""
    client_jobs_max: int = 256
    """The same for each client. A client's jobs run one after the other."""
    jobs_bytes_max: int = 64 * 1024 * 1024
    """The bytes of messages in all enqueues that are jobs."""
    enqueue_step_messages: int = 500
    """Messages of a large enqueue that are stored in one step."""
    enqueue_ms_max: int = 4000
    """How long an enqueue may take before it is answered with the messages stored so far: just below the usual timeout."""
    walk_keys_max: int = 65_536
    """Keys of a queue that a walk over all keys copies at once: half a MiB for each walk. Each portion begins by skipping the
    keys before it, so there should be few portions."""
    paused_keys_max: int = 10_000
    """Paused fairness keys of a queue: its record lists them, and is written at each change."""
    stats_keys_max: int = 2500
    """Fairness keys in one page of a queue's statistics: some 10 ms, and an answer of a third of a MiB."""
    turn_waits_max: int = 2000
    """Receives whose time is up that are answered in one turn."""
    unconfirmed_bytes_max: int = 16 * MIB
    """Commits that the log has not confirmed. Above this no frames are read, which bounds the held effects."""


DEFAULTS = Limits()
"""The limits of objects that are made outside a shard."""


BUFFER_BYTES = 48 * 1024 * 1024
"""The bytes of records of pending messages that a shard keeps in memory. Other records are read when their turn comes."""


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """Times in milliseconds, sizes in bytes, ``quantum`` in units of cost. None stands for no limit."""

    quantum: int = 1000
    visibility_timeout_ms: int = 30_000
    consumer_timeout_ms: int = 15_000
    max_payload_bytes: int = 16 * 1024 * 1024
    buffer_bytes: int = BUFFER_BYTES
    max_queue_messages: int | None = None
    max_queue_bytes: int | None = None
    max_key_messages: int | None = None
    max_keys_per_queue: int = 1_000_000
    max_queues_per_shard: int = 20_000
    min_free_disk_bytes: int = 0
    dedup_window_ms: int = 300_000
    lua_timeout_ms: int = 10
    lua_memory_limit_bytes: int = 1024 * 1024
    lua_breaker_threshold: int = 3
    lua_breaker_cooldown_ms: int = 10_000
    limits: Limits = field(default_factory=Limits)
