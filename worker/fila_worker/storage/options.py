"""The options of a shard's database, tuned for a queue: its data is written once, read once in order and deleted soon.

* memory is bounded by one write-buffer budget and one small block cache, shared by all families of the process;
* small families also compact files full of tombstones; ``messages`` does not, because there every flush of a busy queue is
  such a file, and would rewrite the whole backlog below it;
* payloads of 16 KiB and more live in blob files, so that compaction does not copy them again and again;
* damaged data is refused, never skipped: a log that is damaged in its middle does not open; one that ends in a torn record,
  as a crash leaves it, does.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, Options, WriteBufferManager

WRITE_BUFFERS_BYTES = 64 * 1024 * 1024
"""Memtables of all shards of this process together."""
WRITE_BUFFER_BYTES = WRITE_BUFFERS_BYTES // 2
"""The memtable of one family."""
BLOCK_CACHE_BYTES = 32 * 1024 * 1024
LOG_BYTES_MAX = 128 * 1024 * 1024
"""The size of the write-ahead log before the oldest memtable is flushed. A restart may have to replay it."""
BLOB_BYTES_MIN = 16 * 1024
MESSAGE_BLOCK_BYTES = 16 * 1024
"""The piece of a table that is read at once.

Messages are read in order: a scan of 1 KB messages costs 1.2 µs each, with RocksDB's usual 4 KiB 2.0, and the index takes a
quarter. A single message costs the same up to this size, and twice as much with 32 KiB.
"""
LEVEL_BYTES_BASE = 512 * 1024 * 1024
FILES_BEFORE_COMPACTION = 12
"""Flushed memtables that may lie unsorted.

Messages that a queue holds briefly are gone before a compaction rewrites them, which saves a quarter of the CPU of an
enqueue. The price is a few more files to search for messages that stay.
"""

MEMTABLE_BLOOM_RATIO = 0.02
"""The part of :data:`WRITE_BUFFER_BYTES` for a Bloom filter of ids that are mostly absent: 0.3 µs instead of 1 to 2."""


class SharedMemory:
    """The memory that all databases of one process share."""

    def __init__(self) -> None:
        self.cache = Cache(BLOCK_CACHE_BYTES)
        self.write_buffers = WriteBufferManager(WRITE_BUFFERS_BYTES, False)


def database_options(memory: SharedMemory) -> Options:
    """Return the options of a shard's database."""
    options = _shared_options(family_options(memory, "default"))
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_max_total_wal_size(LOG_BYTES_MAX)
    options.set_write_buffer_manager(memory.write_buffers)
    return options


def _shared_options(options: Options) -> Options:
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_paranoid_checks(True)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(4 * 1024 * 1024)
    options.set_stats_dump_period_sec(0)
    return options


def family_options(
    memory: SharedMemory, name: str, write_buffer_bytes: int = WRITE_BUFFER_BYTES, options: Options | None = None
) -> Options:
    """Return the options of one of its column families, added to ``options``."""
    options = Options(raw_mode=True) if options is None else options
    blocks = BlockBasedOptions()
    blocks.set_block_cache(memory.cache)
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_bloom_filter(10, False)
    if name == "messages":
        blocks.set_block_size(MESSAGE_BLOCK_BYTES)
    options.set_block_based_table_factory(blocks)
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_max_write_buffer_number(3)
    options.set_level_zero_file_num_compaction_trigger(FILES_BEFORE_COMPACTION)
    options.set_level_zero_slowdown_writes_trigger(3 * FILES_BEFORE_COMPACTION)
    options.set_level_zero_stop_writes_trigger(5 * FILES_BEFORE_COMPACTION)
    options.set_max_bytes_for_level_base(LEVEL_BYTES_BASE)
    if name != "messages":
        options.add_compact_on_deletion_collector_factory(10_000, 5_000, 0.5)
    options.set_compression_type(DBCompressionType.lz4() if name != "messages" else DBCompressionType.none())
    if name == "dedup":
        options.set_memtable_prefix_bloom_ratio(MEMTABLE_BLOOM_RATIO * WRITE_BUFFER_BYTES / write_buffer_bytes)
        options.set_memtable_whole_key_filtering(True)
    if name in {"messages", "delayed", "outbox"}:
        options.set_enable_blob_files(True)
        options.set_min_blob_size(BLOB_BYTES_MIN)
        options.set_enable_blob_gc(True)
    return options


# --- a copy whose log is elsewhere ------------------------------------------------------------------------------------

TRIGGER_BYTES = 64 * 1024
"""The write buffer of RocksDB's ``default`` family in a copy, the least allowed. A larger write flushes all families."""

_WITHOUT_SETTERS = """[Version]
  rocksdb_version=9.8.4
  options_file_version=1.1

[DBOptions]
  avoid_flush_during_shutdown=true
  max_bgerror_resume_count=0

[CFOptions "default"]
"""
"""Options that rocksdict has no method for, as a file of RocksDB's.

Without them RocksDB flushes when it is closed, and when it recovers from a failed flush, whatever the memtables hold then.
"""


def copy_options(memory: SharedMemory) -> Options:
    """Return the options of a database without a write-ahead log that flushes all families together or none."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "OPTIONS-000001").write_text(_WITHOUT_SETTERS)
        loaded, _ = Options.load_latest(folder)
    options = _shared_options(family_options(memory, "default", TRIGGER_BYTES, loaded))
    options.set_atomic_flush(True)
    return options
