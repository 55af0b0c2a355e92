"""Who leads a shard: the state machine of one shard in one process. Its only source is the shard's own log.

**The last marker leads.** A leader appends a beat once a second. A standby that reads none for long enough appends a marker.
If two do, the later marker leads, and the other node follows again. So nodes need to agree on the order of the log only. A
wrong guess costs time, never a record: later records of a deposed leader do not count (:mod:`fila_worker.log.rule`).

::

               claim, its own marker is the last         serve when recovered
    FOLLOWS ────────────▶ CLAIMS ────────────▶ LEADS ──────────────────────▶ (serving)
       ▲  ▲                 │                    │ leave            no proof for long: stop serving, until there is one
       │  └── another one ──┘                    ▼
       └───────────────────────────────────── LEAVES          any: fenced, or an unknown outcome ─▶ ENDED

When a standby claims:

- **Silence.** It has read the log to its end, and no record counted for ``silence_ms``, and ``rank_ms`` more for each standby
  before it in the line. The partition has answered all that time but the first part: after an outage of the log the leader's
  delayed records must have a chance to come. A silence does not count if this process itself did not run.
- **A vacancy.** The leader has left (its successor claims at once, the others soon after), the log has no marker yet, or the
  last marker is of an earlier process of this node. That one has ended: this one has the lock of the data directory. A node
  that *holds back* waits for a silence in the last case: another process may still have its name, or its disk is full.

A leader serves as long as it has proof. The proof is a record that counts, from the time when it was *appended*: at that time
no other marker was in the log, however late the report comes. Without proof for ``proof_ms_max`` another node may lead, so
the leader stops serving. It serves again if it still leads. Effects are held until confirmed in any case: this limit is for
waiting clients, not for safety.

All times are of a steady clock of this process, and only spans are used. So the clocks of other hosts do not matter.

Rejected: a lease whose end the others compute. It needs clocks of about the same rate on all hosts, and the log fences
anyway.
"""

from fila_worker.log.leadership.actions import (
    Action,
    Append,
    AskEnd,
    End,
    Follow,
    LeadershipState,
    Recover,
    Serve,
    StopServing,
)
from fila_worker.log.leadership.machine import Leadership
from fila_worker.log.leadership.term import LeadershipLimits, Proof

__all__ = [
    "Action",
    "Append",
    "AskEnd",
    "End",
    "Follow",
    "Leadership",
    "LeadershipLimits",
    "LeadershipState",
    "Proof",
    "Recover",
    "Serve",
    "StopServing",
]
