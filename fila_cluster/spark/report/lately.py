"""Asking a dashboard for the last half hour of a queue.

One request with the standard library's client, bounded in time and size. Any program may answer, so the answer is checked. No
proxy is used: a dashboard is on this machine or near it, and a proxy's page of errors would be taken for its answer.
"""

from collections.abc import Mapping
from http.client import HTTPException
from typing import Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

import msgspec

from fila_cluster.ops.analysis.history import SERIES, HalfHour

ANSWER_S_MAX: Final = 5.0
_ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
"""Fifty times the size of half an hour."""
_TIMES_S: Final = range(253_402_300_800)
"""The range of dates: up to the year 9999."""
_SAID_LENGTH: Final = 200


class NoHistoryError(Exception):
    """A dashboard has no history of the queue; the text is the reason."""


class WrongDashboardError(Exception):
    """The address does not answer, or is not a dashboard of this cluster; the text is the reason."""


class _Refusal(msgspec.Struct):
    error: str


def ask_half_hour(dashboard: str, queue: str, workers: Mapping[str, int]) -> HalfHour:
    """Return the last half hour of a queue from the cluster of ``workers``. :class:`NoHistoryError`,
    :class:`WrongDashboardError`."""
    status, body = _get(dashboard, f"{dashboard}/history?{urlencode({'queue': queue})}")
    if status == 404 and (reason := _reason_in(body)):
        raise NoHistoryError(f"{dashboard} has {reason}")
    if status != 200:
        raise WrongDashboardError(f"{dashboard} is not a dashboard of this version: it answers /history with {status}")
    answer = _decoded(body)
    if answer is None:
        raise WrongDashboardError(f"{dashboard} is not a dashboard of this version: its answer is not a history")
    if not answer.workers:
        raise NoHistoryError(f"{dashboard} does not reach its broker just now")
    if not workers.items() & answer.workers.items():
        raise WrongDashboardError(f"{dashboard} shows another cluster")
    return answer


def _get(dashboard: str, url: str) -> tuple[int, bytes]:
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=ANSWER_S_MAX) as answer:
            return answer.status, answer.read(_ANSWER_BYTES_MAX)
    except HTTPError as refused:
        with refused:
            return refused.code, refused.read(_ANSWER_BYTES_MAX)
    except (OSError, HTTPException, ValueError) as error:
        raise WrongDashboardError(f"nothing answers at {dashboard}: {_why(error)}") from None


def _why(error: Exception) -> str:
    cause = error.reason if isinstance(error, URLError) else error
    text = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    return text or type(cause).__name__


def _reason_in(body: bytes) -> str | None:
    """Return the error text in a refusal of the observer."""
    try:
        said = msgspec.json.decode(body, type=_Refusal).error
    except msgspec.MsgspecError:
        return None
    return "".join(letter for letter in said if letter.isprintable())[:_SAID_LENGTH]


def _decoded(body: bytes) -> HalfHour | None:
    try:
        answer = msgspec.json.decode(body, type=HalfHour)
    except msgspec.MsgspecError:
        return None
    ticks = len(answer.times)
    is_sound = all(_TIMES_S.start <= at_s < _TIMES_S.stop for at_s in answer.times) and answer.series.keys() >= set(SERIES)
    return answer if is_sound and all(len(numbers) == ticks for numbers in answer.series.values()) else None
