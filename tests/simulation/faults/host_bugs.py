"""Bugs that are planted into what lets several hosts have a shard."""

from contextlib import ExitStack
from typing import Any

from fila_router.core.keys.key_replication import KeyReplication
from fila_worker.core.due_time import AT_ONCE
from fila_worker.log.leadership import Leadership, LeadershipState
from fila_worker.log.leadership.candidacy import EndOfLog
from fila_worker.log.member import Member
from fila_worker.log.records import Before, RecordKind
from fila_worker.log.rule import Position, Writer
from fila_worker.process.shard_messages import BETWEEN_SHARDS, ShardMessages
from tests.simulation.faults.planting import replace
from tests.simulation.world.copies import SimCopy


def hasty_claim(stack: ExitStack) -> None:
    """A host claims, and leads as soon as its marker is in the log, whether it has read up to there or not."""

    def lead_now(real: Any) -> Any:
        def check_claim(leadership: Any, now_ms: int) -> None:
            if leadership._marked and leadership._mark is not None:
                leadership.epoch = leadership._mark
                leadership._begin_term()
            else:
                real(leadership, now_ms)

        return check_claim

    def skip(real: Any) -> Any:
        def begin_term(member: Any) -> None:
            last, mark = member._rule.position, member.leadership.epoch
            if last.offset != mark:
                before = Before(last.epoch, last.number) if last.number else last.before
                member._rule.position = member.copy.position = Position(mark, mark, 0, before)
                member.copy._ahead = 0
            real(member)

        return begin_term

    replace(stack, EndOfLog, "at_end", lambda real: property(lambda answers: answers.answered_ms is not None))
    replace(stack, Leadership, "_check_claim", lead_now)
    replace(stack, Member, "_begin_term", skip)


def undeposed_leader(stack: ExitStack) -> None:
    """A leader goes on behind the marker of another one."""

    def make(real: Any) -> Any:
        def read(writer: Any, offset: int, record: Any) -> None:
            if record.kind is RecordKind.MARKER:
                writer._judged = offset
            else:
                real(writer, offset, record)

        return read

    replace(stack, Writer, "read", make)


def hasty_flush(stack: ExitStack) -> None:
    """A copy is flushed with turns that are not confirmed."""
    replace(stack, SimCopy, "_may_flush", lambda real: lambda copy: True)


def endless_proof(stack: ExitStack) -> None:
    """A leader serves on however long nothing shows that it still leads."""

    def make(real: Any) -> Any:
        def lead(leadership: Any, now_ms: int) -> None:
            if leadership.state is LeadershipState.LEADS:
                leadership._term.proof_ms = now_ms
            real(leadership, now_ms)

        return lead

    replace(stack, Leadership, "_lead", make)


def kept_letter(stack: ExitStack) -> None:
    """What is for a shard of which this host has a copy stays here, whoever leads it."""

    def make(real: Any) -> Any:
        def stays(messages: Any, post: Any) -> bool:
            if isinstance(post.command, BETWEEN_SHARDS) and post.command.to_shard in messages.process.slots:
                messages.between.append(post.command)
                messages.timer.due_ms = AT_ONCE
                return True
            return bool(real(messages, post))

        return stays

    replace(stack, ShardMessages, "on_post", make)


def deaf_routers(stack: ExitStack) -> None:
    """Of several routers only the one that changed the API keys knows of it."""

    def make(real: Any) -> Any:
        def pulsed(replication: Any, worker: Any, version: int, now_ms: int) -> None:
            if not version:
                real(replication, worker, version, now_ms)

        return pulsed

    replace(stack, KeyReplication, "pulsed", make)


HOST_BUGS = (hasty_claim, undeposed_leader, hasty_flush, endless_proof, kept_letter, deaf_routers)
