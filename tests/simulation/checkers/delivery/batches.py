"""The callback of a batch comes once, when no member can be given out any more, and says how many there were."""

from tests.simulation.checkers.fate import _may_be_gone, calls_by_token
from tests.simulation.history import BatchSeen, Grant, History


def check(history: History) -> None:
    """Look at each batch. After a power cut batches may be older than their messages."""
    if history.power_cuts:
        return
    grants = history.grants_by_token()
    for token, batch in history.batches.items():
        callbacks = [grant for grant in grants[token] if not grant.repeated]
        if len({grant.id for grant in callbacks}) > 1:
            history.fail("batches", f"callback {token} was stored twice: {sorted({grant.id for grant in callbacks})}")
        if callbacks:
            _check_early(history, batch, callbacks[0], grants)
            _check_counts(history, batch, callbacks[0])
        else:
            _check_missing(history, token, batch)


def _check_missing(history: History, token: str, batch: BatchSeen) -> None:
    sealed = batch.seal is not None and batch.seal.ok
    sent = history.sent[token]
    if sealed and not _may_be_gone(history, sent, calls_by_token(history)[token], []):
        history.fail("batches", f"the batch of callback {token} is sealed, all is done, and the callback never came")


def _check_early(history: History, batch: BatchSeen, callback: Grant, grants: dict[str, list[Grant]]) -> None:
    if batch.seal is None:
        history.fail("batches", f"callback {callback.token} came, and its batch was never sealed")
    if history.saw("redrive"):
        return  # a dead letter that is delivered again is no member
    for member in batch.members:
        sent = history.sent[member]
        if sent.id is None or sent.options.get("dedup_id"):
            continue
        later = [each for each in grants[member] if each.at_us > callback.at_us and not each.repeated and each.reason is None]
        if later:
            history.fail("batches", f"{member} was given out after the callback {callback.token} of its batch")


def _check_counts(history: History, batch: BatchSeen, callback: Grant) -> None:
    headers = batch.headers
    total, acked, dead, removed = (
        int(headers.get(f"fila-batch-{name}", -1)) for name in ("total", "acked", "dead", "removed")
    )
    sent = [history.sent[member] for member in batch.members]
    least = sum(each.id is not None and not each.options.get("dedup_id") for each in sent)
    if not least <= total <= len(sent) or acked + dead + removed != total or min(acked, dead, removed) < 0:
        history.fail("batches", f"callback {callback.token} says {headers}; {least} to {len(sent)} members were stored")
    if removed and not any(history.saw(kind) for kind in ("purge_queue", "cancel", "delete_queue")):
        history.fail("batches", f"callback {callback.token} says {headers}, and nobody removed anything")
