"""Moves of backlogs: a message is given out only by queues to which it was sent or moved, or by those of their dead letters."""

from tests.simulation.history import History


def check(history: History) -> None:
    """Look at the queue of each grant. A queue may hold dead letters of several others."""
    if not history.saw("set_aside"):
        return
    for grant in history.grants:
        sent = history.sent.get(grant.token)
        if sent is None or sent.options.get("dedup_id") or history.is_excused(grant.token):
            continue
        homes = history.homes_of(sent)
        letters = {str(history.queues.get(home, {}).get("dead_letter", "dlq")) for home in homes}
        if grant.queue.removesuffix(".dlq") not in homes | letters:
            history.fail("moves", f"{grant.token} was sent to {sent.queue}, and is given out by {grant.queue}")
            return
