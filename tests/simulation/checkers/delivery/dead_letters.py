"""A message is a dead letter for a reason that the contract names, as the message that it was, and it does not vanish on the way.

That it is in one place only, the auditor sees; here is what its deliveries tell.
"""

from tests.simulation.actors.programs import dead_letters_of
from tests.simulation.checkers.fate import calls_by_token, same_message
from tests.simulation.history import Done, Grant, History, Sent


def check(history: History) -> None:
    """Look at the first delivery of each dead letter, and for each message that was failed."""
    grants, calls = history.grants_by_token(), calls_by_token(history)
    for (token, _), several in history.grants_by_message().items():
        sent = history.sent.get(token)
        number = next((number for number, grant in enumerate(several) if grant.reason is not None), None)
        if sent is None or number is None:
            continue
        letter, before = several[number], several[:number]
        wrong = (
            _wrong_place(history, sent, letter)
            or _unfounded(history, sent, letter, calls[token])
            or _incomplete(history, sent, letter, before)
            or _revived(history, letter, several[number + 1 :])
        )
        if wrong:
            history.fail("dead letters", f"{token} is a dead letter ({letter.reason}) in {letter.queue}, {wrong}")
    for token, about in calls.items():
        for call in about:
            if call.kind == "fail" and call.ok:
                _check_arrived(history, token, call, same_message(history, call, grants[token]))


def check_own_caps(history: History) -> None:
    """A message is not delivered more often than its own number of attempts allows."""
    for grant in history.grants:
        sent = history.sent.get(grant.token)
        own = None if sent is None else sent.options.get("max_attempts")
        if sent is None or own is None or grant.queue != sent.queue or grant.reason is not None:
            continue
        if grant.attempts >= own and not history.is_excused(grant.token):
            history.fail(
                "dead letters",
                f"{grant.token} may be delivered {own} times, and had {grant.attempts} attempts when it was given out",
            )


def _places(history: History, queue: str) -> set[str]:
    """Where the dead letters of a queue go; if that one is missing, to its own."""
    named = dead_letters_of(queue, history.queues.get(queue, {}))
    return {f"{queue}.dlq"} | ({named, f"{named}.dlq"} if named else set())


def _wrong_place(history: History, sent: Sent, letter: Grant) -> str:
    source = letter.source_queue
    homes = history.homes_of(sent)
    if source is None or (source not in homes and not any(source in _places(history, home) for home in homes)):
        return f"from {source}, and was sent to {sent.queue}"
    return "" if letter.queue in _places(history, source) else f"where those of {source} do not belong"


def _unfounded(history: History, sent: Sent, letter: Grant, calls: list[Done]) -> str:
    """Whether its reason is none."""
    source = str(letter.source_queue)
    options = history.queues.get(source, {})
    if letter.reason == "failed":
        said = any(call.kind == "fail" and call.queue == source and call.started_us <= letter.at_us for call in calls)
        return "" if said else "and was never failed"
    if letter.reason == "max_attempts":
        own = sent.options.get("max_attempts")
        if own is not None and source in history.homes_of(sent):
            return "" if letter.attempts >= own else f"after {letter.attempts} attempts of its own {own}"
        caps = [options.get("max_attempts"), *(call.said.get("max_attempts") for call in _updates(history, source))]
        least = min((cap for cap in caps if cap is not None), default=None)
        return (
            "" if least is not None and letter.attempts >= least else f"after {letter.attempts} attempts of at least {least}"
        )
    if letter.reason == "hook":
        asked = "dead" in str(options.get("on_failure", "")).split() and letter.attempts >= 2
        return "" if asked else f"and its hook {options.get('on_failure')!r} did not say so after {letter.attempts} attempts"
    given = [
        options.get("default_ttl"),
        *(history.queues.get(home, {}).get("default_ttl") for home in history.homes_of(sent)),
    ]
    ttls = [ttl for ttl in (sent.options.get("ttl"), *given) if ttl is not None]
    if letter.reason == "expired" and ttls:
        since_us = letter.at_us - sent.call.started_us
        return "" if since_us >= min(ttls) * 1e6 - _clock_slack_us(history) else f"{since_us / 1e6:.3f} s after it was sent"
    return f"for no reason that its options {sent.options} and its queue's {options} give"


def _updates(history: History, queue: str) -> list[Done]:
    return [call for call in history.calls if call.kind == "update_queue" and call.queue == queue]


def _clock_slack_us(history: History) -> float:
    return float("inf") if history.clock_steps or history.clocks_differ else 100_000


def _incomplete(history: History, sent: Sent, letter: Grant, before: list[Grant]) -> str:
    """Whether it lacks anything of what it was. Attempts that nobody saw are those of a process that died, or of a reservation."""
    if sent.id is not None and letter.id != sent.id and not sent.options.get("dedup_id"):
        return f"with the id {letter.id}, which was {sent.id}"
    # The hook of the queue to which it was moved meanwhile may give it another key.
    if before and before[-1].queue == letter.source_queue and letter.key != before[-1].key:
        return f"of the key {letter.key}, which was {before[-1].key}"
    if any(map(history.saw, ("redrive", "reserve", "set_aside"))) or history.had_a_death(sent.call.started_us, letter.at_us):
        return ""
    attempts = before[-1].attempts if before else 0
    if letter.reason == "expired":
        return "" if attempts <= letter.attempts <= attempts + 1 else f"with {letter.attempts} attempts after {attempts}"
    if not before:
        return "and was never given out"
    return "" if letter.attempts == attempts + 1 else f"with {letter.attempts} attempts after {attempts}"


def _revived(history: History, letter: Grant, after: list[Grant]) -> str:
    """Whether it came back to where it was, and nobody had asked for that."""
    if history.saw("redrive") or history.saw("set_aside") or history.is_excused(letter.token):
        return ""
    back = next((grant for grant in after if grant.queue == letter.source_queue), None)
    return f"and is given out by {back.queue} again at {back.at_us / 1e6:.6f}" if back else ""


def _check_arrived(history: History, token: str, call: Done, grants: list[Grant]) -> None:
    """What was failed, and that was confirmed, is found where dead letters go: the auditor takes all there is."""
    options = history.queues.get(call.queue, {})
    if dead_letters_of(call.queue, options) is None or history.was_gone(token) or history.is_excused(token):
        return
    if history.saw("set_aside"):
        return  # it may be elsewhere by now
    places = _places(history, call.queue) | {call.queue}
    if _was_reserved(history, token, places):
        return
    if not any(grant.at_us >= call.started_us and grant.queue in places for grant in grants):
        history.fail(
            "dead letters", f"{token} of {call.queue} was failed in #{call.number}, and never came to {sorted(places)}"
        )


def _was_reserved(history: History, token: str, places: set[str]) -> bool:
    """Whether a reservation of one of these queues had the message, and was done with it: no grant tells of that."""
    return any(
        call.kind == "end_reservation_ack" and call.queue in places and token in call.said["tokens"] for call in history.calls
    )
