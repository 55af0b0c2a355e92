"""Order within a fairness key, and how many of its messages are under way at a time."""

from collections import defaultdict
from itertools import pairwise

from fila_proto_zmq.ids import parse_id, sequence
from fila_proto_zmq.names import is_dead_letter, whole_queue
from tests.simulation.checkers.fate import calls_by_token
from tests.simulation.history import Grant, History, Sent


def _by_key(history: History) -> dict[tuple[str, str], list[Grant]]:
    """What each queue, or each of its partitions, has given out of a key, in the order in which each shard leased it. At most once
    deliveries have no lease: by time. A queue whose number of partitions changes is one here: the order of its keys holds over that.
    """
    found: dict[tuple[str, str], list[Grant]] = defaultdict(list)
    whole = {queue: _is_whole(history, queue) for queue in {grant.queue for grant in history.grants}}
    for grant in history.grants:
        found[grant.queue if whole[grant.queue] else grant.place, grant.key].append(grant)
    for several in found.values():
        if all(grant.lease for grant in several):
            lines = {
                shard: iter(sorted((grant for grant in several if grant.shard == shard), key=lambda grant: grant.fence))
                for shard in {grant.shard for grant in several}
            }
            several[:] = [next(lines[grant.shard]) for grant in several]
    return found


def _is_whole(history: History, queue: str) -> bool:
    """Whether the partitions of a queue change, and each key has one of them at a time: members of batches stay where they are."""
    return history.is_repartitioned(queue) and history.spread_of(queue)[1] != "message" and not history.batches


def _number(grant: Grant) -> int:
    return sequence(parse_id(grant.id)[1])


def check_sent(history: History) -> None:
    """The messages of one producer, or of one iterable, are stored in the order in which they were sent, key by key."""
    lines: dict[tuple[int, str], list[Sent]] = defaultdict(list)
    for sent in history.sent.values():
        if history.spread_of(sent.queue)[1] == "message":
            continue  # its ids are of several shards
        if sent.call.kind == "enqueue_many" and sent.id is not None and not sent.options.get("dedup_id"):
            lines[id(sent.call), sent.options["fairness_key"]].append(sent)
    for (_, key), line in lines.items():
        for earlier, later in pairwise(line):
            places = [_place(each) for each in (earlier, later)]
            if history.is_repartitioned(later.queue):  # clocks of shards differ
                places = [(0, sequence(low)) for _, low in places]
            if places[1] < places[0] and not history.power_cuts:
                history.fail("sent order", f"{later.token} of {later.queue} {key} was stored before {earlier.token}")


def _place(sent: Sent) -> tuple[int, int]:
    assert sent.id is not None
    return parse_id(sent.id)


def check_line(history: History) -> None:
    """Of two messages of a key that could both go, the more urgent one goes first, then the older one."""
    for (queue, key), grants in _by_key(history).items():
        if is_dead_letter(queue) or queue.startswith("graves") or history.power_cuts:
            continue
        firsts: list[Grant] = []
        seen: set[str] = set()
        for grant in grants:
            if grant.token not in seen:
                seen.add(grant.token)
                if _plain(history, grant):
                    firsts.append(grant)
        for index, later in enumerate(firsts):
            for earlier in firsts[:index]:
                overtaken = later.priority <= earlier.priority and _number(later) < _number(earlier)
                if not overtaken or later.throttle_keys != earlier.throttle_keys or _at_once(earlier, later):
                    continue
                # unless it may have gone before, and never left the process
                if not history.had_a_death(history.sent[later.token].call.started_us, later.at_us):
                    history.fail(
                        "order",
                        f"{earlier.token} went before {later.token} of {queue}/{key}, which is older and not less urgent",
                    )
                    return


def _at_once(one: Grant, other: Grant) -> bool:
    """Whether two messages without leases went in one turn to different clients: these frames have no order."""
    return one.at_most_once and other.at_most_once and one.at_us == other.at_us and one.client != other.client


def _plain(history: History, grant: Grant) -> bool:
    """Whether it was in line from the moment in which it was enqueued: neither delayed, nor redriven, moved or given to a
    reservation."""
    sent = history.sent.get(grant.token)
    if sent is None or grant.attempts or sent.queue != grant.queue:
        return False
    options = history.queues.get(sent.queue, {})
    if sent.options.get("dedup_mode") == "last":
        return False  # it has the place of another
    if history.homes_of(sent) != {sent.queue}:
        return False  # a move may have taken it to the end of another line, and back
    if history.is_repartitioned(grant.queue):
        if "on_enqueue" in options or not _is_whole(history, grant.queue):
            return False  # its entrance may not have been its partition
    elif history.entrance_of(sent) not in (grant.queue, grant.place):
        return False  # it was in another partition before
    if grant.place != grant.queue and grant.token in history.batches:
        return False  # it has the id that its batch got from the first partition
    delayed = sent.options.get("delay") or "late" in str(options.get("on_enqueue", ""))
    return not delayed and not history.saw("redrive") and not history.saw("reserve") and not history.saw("delete_queue")


def check_strict(history: History) -> None:
    """With ``max_in_flight_per_key=1`` nothing of a key goes while one of its messages waits for another attempt."""
    calls = calls_by_token(history)
    for (queue, key), grants in _by_key(history).items():
        if (
            history.queues.get(whole_queue(queue), {}).get("max_in_flight_per_key") != 1
            or history.power_cuts
            or history.saw("redrive")
        ):
            continue
        again: dict[str, Grant] = {}
        for index, grant in enumerate(grants):
            before = again.get(grant.token)
            if before is not None and _came_back(before, grant, calls):
                between = [each for each in grants[grants.index(before) + 1 : index] if each.token != grant.token]
                if between:
                    history.fail(
                        "strict order",
                        f"{between[0].token} of {queue}/{key} went while {grant.token} waited for its next attempt",
                    )
                    return
            again[grant.token] = grant


def _came_back(before: Grant, grant: Grant, calls: object) -> bool:
    return grant.attempts > before.attempts


def check_caps(history: History) -> None:
    """No more of a key are leased than its queue allows, as far as programs can tell."""
    calls = calls_by_token(history)
    for (queue, key), grants in _by_key(history).items():
        cap = history.queues.get(whole_queue(queue), {}).get("max_in_flight_per_key")
        if cap is None or history.power_cuts:
            continue
        for index, grant in enumerate(grants):
            held = {each.token for each in grants[:index] if each.token != grant.token and _held_at(each, grant, calls)}
            if len(held) >= cap:
                history.fail(
                    "caps",
                    f"{grant.token} of {queue}/{key} went while {sorted(held)} were under way, and at most {cap} may be",
                )
                return


def _held_at(each: Grant, grant: Grant, calls: object) -> bool:
    """Whether it surely was leased when the other one went: its first settlement began later, and one was confirmed."""
    if each.at_most_once:
        return False
    if any("cancelled_after" in call.said and call.started_us < grant.at_us for call in calls[each.token]):  # type: ignore[index]
        return False  # its caller did not wait to hear whether it was done
    about = [
        call for call in calls[each.token]  # type: ignore[index]
        if call.said.get("lease") == each.lease and call.said.get("index") == each.index and call.kind != "extend"
    ]  # fmt: skip
    return any(call.ok for call in about) and about[0].started_us > grant.at_us
