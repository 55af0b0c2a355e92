"""What became of each message: none is lost, none that was acked returns, none is stored or given out twice that may not be."""

from collections import defaultdict
from typing import Any

from tests.simulation.history import Done, Grant, Handed, History, Sent

ENDING = ("ack", "fail", "end_reservation_ack", "cancel")


def _tokens_of(call: Done) -> list[str]:
    said = call.said
    return [said["token"]] if "token" in said else list(said.get("tokens") or [])


def calls_by_token(history: History) -> dict[str, list[Done]]:
    """All calls about a single message."""
    found: dict[str, list[Done]] = defaultdict(list)
    for call in history.calls:
        if isinstance(call.said.get("tokens"), str):
            continue
        for token in _tokens_of(call):
            found[token].append(call)
    return found


def check_lost(history: History) -> None:
    """Whatever was confirmed was acked in the end, or ended in a way that somebody asked for."""
    calls, grants = calls_by_token(history), history.grants_by_token()
    by_id: dict[str, list[Sent]] = defaultdict(list)
    for sent in history.sent.values():
        if sent.id is not None:
            by_id[sent.id].append(sent)
    for message, several in by_id.items():
        dedup = {(sent.queue, sent.options["dedup_id"]) for sent in several if sent.options.get("dedup_id")}
        if dedup:  # the message with this id may be one that was never confirmed
            several += [sent for sent in history.sent.values() if (sent.queue, sent.options.get("dedup_id")) in dedup]
        if not any(_may_be_gone(history, sent, calls[sent.token], grants[sent.token]) for sent in several):
            names = [sent.token for sent in several]
            history.fail("lost", f"{names} of {several[0].queue} ({message}) was confirmed and is nowhere")


def _may_be_gone(history: History, sent: Sent, calls: list[Done], grants: list[Grant]) -> bool:
    if any(call.kind in ("ack", "cancel", "end_reservation_ack") and not call.denied for call in calls):
        return True
    if any(grant.at_most_once for grant in grants):
        return True
    if history.is_excused(sent.token):
        return True
    for options in (history.queues.get(home, {}) for home in history.homes_of(sent)):
        discards = options.get("dead_letter") == "discard"
        ends_unseen = options.get("delivery") == "at_most_once" or (discards and _is_capped(history, sent, options))
        if ends_unseen and history.had_a_death(sent.call.started_us, history.audit_us):
            return True  # its delivery, or its last one, is over when it is made, and it may not have left the process
        if discards and (grants or "ttl" in sent.options or "default_ttl" in options):
            return True
    return history.was_swept(sent)


def _is_capped(history: History, sent: Sent, options: dict[str, Any]) -> bool:
    """Whether a message may be delivered a number of times only."""
    updates = (call.said for call in history.calls if call.kind == "update_queue" and call.queue == sent.queue)
    return any(each.get("max_attempts") is not None for each in (sent.options, options, *updates))


def check_returned(history: History) -> None:
    """What was acked, and confirmed, is never given out again."""
    grants = history.grants_by_token()
    for token, calls in calls_by_token(history).items():
        for call in calls:
            if not call.ok or not (call.kind == "ack" or _ended_all(call)):
                continue
            for grant in same_message(history, call, grants[token]):
                later = _is_later(history, call, grant)
                if later and not history.undone(call, grant.at_us) and not history.is_excused(token):
                    history.fail(
                        "acked returns", f"{token} was acked in #{call.number} and is given out again: {_shown(grant)}"
                    )
                    break


def same_message(history: History, call: Done, grants: list[Grant]) -> list[Grant]:
    """Of a token's grants: those of the message that a call settled.

    An enqueue that is repeated after the dedup window stores a second message with the same token (see ``dedup``).
    """
    ids, said = {grant.id for grant in grants}, call.said
    if "ids" in said:
        return [grant for grant in grants if grant.id in said["ids"]]
    if len(ids) == 1:
        return grants
    fence = history.shard_of_call(call), said.get("lease"), said.get("index")
    same = [grant for grant in grants if (grant.shard, *grant.fence) == fence]
    if not said.get("lease"):  # delivered at most once: such fences are not unique
        same = [grant for grant in same if grant.at_us <= call.started_us]
    settled = {grant.id for grant in same}
    return [grant for grant in grants if grant.id in settled]


def _ended_all(call: Done) -> bool:
    """Whether it acked a reservation that still had all its messages."""
    return call.kind == "end_reservation_ack" and call.value.count == len(call.said["tokens"]) > 0


def _is_later(history: History, call: Done, grant: Grant) -> bool:
    """Return whether a message was given out after a call. By lease where there is one: a push through a router that is away may
    leave the worker long after it was made."""
    assert call.ended_us is not None
    lease = call.said.get("lease")
    if lease and grant.lease and grant.shard == history.shard_of_call(call):
        return bool(grant.lease > lease)
    return grant.at_us > call.ended_us


def _shown(grant: Grant) -> str:
    return (
        f"{grant.queue} lease {grant.lease & 0xFFFFF}.{grant.index} of epoch {grant.lease >> 40} at {grant.at_us / 1e6:.6f}"
    )


def check_stored_once(history: History) -> None:
    """A message that was sent once has one id.

    Not after a power cut: it may undo the storing, and the request (or the end of a batch, for its callback) comes again.
    """
    for token, grants in history.grants_by_token().items():
        ids = {grant.id for grant in grants}
        sent = history.sent.get(token)
        if len(ids) > 1 and sent is not None and not sent.options.get("dedup_id") and not history.is_excused(token):
            history.fail("stored once", f"{token} has the ids {sorted(ids)}")


def check_at_most_once(history: History) -> None:
    """Where each message is delivered at most once, no program is given one twice."""
    handed: dict[tuple[str, str], list[Handed]] = defaultdict(list)
    for each in history.handed:
        if each.at_most_once and not each.queue.endswith(".dlq"):
            handed[each.token, each.id].append(each)
    for (token, _), several in handed.items():
        # The ack that follows the handing over may wait for its worker for long, and be undone by a power cut then.
        undone = any(several[0].at_us <= cut_us <= several[-1].at_us for _, _, cut_us in history.power_cuts)
        if len(several) > 1 and not undone and not history.is_excused(token):
            history.fail("at most once", f"{token} was given to programs {len(several)} times: {several[:2]}")


def check_given_back(history: History) -> None:
    """A message that went back uncounted, because it had reached no program, reaches none under that delivery later.

    Not where its client cannot know yet: the key of the client was revoked.
    """
    if history.saw("redrive") or history.saw("reserve"):
        return  # these hand it out anew without a count
    by_message = history.grants_by_message()
    for each in history.handed:
        shard = history.shard_of(each.place)
        held = history.grant_of(shard, each.lease, each.index)
        if held is None or each.client in history.keys or history.is_excused(each.token):
            continue
        for grant in by_message[each.token, each.id]:
            later = grant.shard == shard and grant.lease > each.lease and grant.queue == each.queue
            if later and grant.at_us < each.at_us and grant.attempts == held.attempts:
                history.fail(
                    "given back", f"{each.client} has {_shown(held)}, but it had gone back uncounted: {_shown(grant)}"
                )
                break


def check_settlements(history: History) -> None:
    """A settlement that was confirmed was by whoever had the message: nobody had it since."""
    grants = history.grants_by_token()
    for token, calls in calls_by_token(history).items():
        confirmed = [
            call for call in calls if call.ok and "index" in call.said and call.said["lease"] and call.kind != "extend"
        ]
        for call in confirmed:
            shard, lease = history.shard_of_call(call), call.said["lease"]
            tries = [
                each
                for each in calls
                if "index" in each.said and each.said["lease"] == lease and each.said.get("index") == call.said["index"]
            ]
            began_us = min(each.started_us for each in tries if each.kind != "extend")
            for grant in same_message(history, call, grants[token]):
                newer = grant.shard == shard and grant.lease > lease
                if newer and grant.at_us < began_us and not history.is_excused(token):
                    history.fail(
                        "fences",
                        f"#{call.number} {call.kind} of {token} was confirmed, but it was given out since: {_shown(grant)}",
                    )
                    break
