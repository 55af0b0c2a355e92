"""What a member of a log shows of its copy, for people."""

from typing import Final

from fila_proto_zmq.commands import HostCopy
from fila_proto_zmq.commands.hosts import CLAIMS, FOLLOWS, LEADS, LEAVES, RECOVERS, WAITS
from fila_worker.log.leadership import State
from fila_worker.log.member import Member

CAUSES: Final = "no quorum of its brokers, or they can't be reached"

_ROLES: Final = {State.FOLLOWS: FOLLOWS, State.CLAIMS: CLAIMS, State.LEAVES: LEAVES, State.ENDED: LEAVES}


def has_proof(member: Member, now_ms: int) -> bool:
    """Return whether a leader has confirmed anything lately, so that it may serve."""
    proof_ms = member.leadership.proof_ms
    return proof_ms is not None and now_ms - proof_ms < member.leadership.limits.proof_ms_max


def problem(member: Member, now_ms: int) -> str:
    """Return what is wrong with the log, for people; empty: nothing."""
    limits, proof_ms = member.leadership.limits, member.leadership.proof_ms
    if proof_ms is not None:
        silent_ms = now_ms - proof_ms
        what, patience_ms = "the log has confirmed nothing", 3 * limits.beat_ms
    else:
        silent_ms = member.unanswered_ms(now_ms)
        what, patience_ms = "the log's partition has not answered", 2 * limits.ask_idle_ms + limits.answer_ms_max
    return f"{what} for {silent_ms / 1000:.1f} s: {CAUSES}" if silent_ms > patience_ms else ""


def copy_view(member: Member, shard: int, now_ms: int, *, is_open: bool, queues: int) -> HostCopy:
    """Return a member's copy as operators see it. ``is_open``: whether the shard is recovered here."""
    leadership, copy = member.leadership, member.copy
    role = _ROLES.get(leadership.state)
    if role is None:
        role = RECOVERS if has_proof(member, now_ms) else WAITS
        if is_open and member.serves:
            role = LEADS
    behind, end = 0 if member.reigns else member.behind, member.end
    proof_ms = leadership.proof_ms
    return HostCopy(
        shard, role, leadership.epoch, copy.position.offset,
        -1 if end is None else max(end, copy.position.offset + 1),
        -1 if behind is None else behind,
        copy.unconfirmed_bytes,
        -1 if proof_ms is None else now_ms - proof_ms,
        queues,
        problem(member, now_ms),
        copy.confirm_ns.wire() if any(copy.confirm_ns.counts) else None,
        member.replicas,
    )  # fmt: skip
