"""Resharding: copy the queues of a stopped cluster into more or fewer new shards.

The old shards are only read (each is recovered first, as at a start, so that its counts are exact). The new shards are built
with the functions of a running shard, so they store what a running shard would store.

Queues and lanes get new numbers, which are a shard's own. All else stays: ids, places in line, attempts, due times, times to
live, dedup ids, leases with their ids and holders, options, pauses, and weights.

*Numbers.* Each new shard continues behind the highest sequence number, time and epoch of all old shards. So no id, no fence
and no stream of frames is used twice, also where the index of a shard is used again later. But messages of two queues that
come together may have the same number. So the new shards keep the earlier numbers of shards, each with its last sequence
number (``Counters.earlier``). A message has the place of its own number only in queues that were on its shard when it got the
number.

*Messages between shards.* The inboxes of all old shards show which of these messages have arrived. The others go into new
streams, from the shard that now has the queue they came from. A stream may lead to the same shard.

*Crashes.* A new shard stores with each commit how far the old ones were copied (:class:`.new_shard.Position`). After a crash
the copy continues behind the least of these positions, and each new shard leaves out what it has.

Rejected: copying records without a shard's functions (twice as fast, but each change of a record's layout would have to be
made twice); ending leases (at-most-once deliveries would come twice, and a stream of Spark would lose its reservation).
"""
