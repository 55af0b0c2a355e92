"""Decisions of pure scripts, recalled instead of made again.

The key of a decision is the message's packed headers, with its size if the script uses that. A decision is valid for the
config values that were read while decisions were made; all of these are compared before each batch. If messages all differ,
recalling does not pay, and is given up.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from fila_worker.core.hooks import EnqueueDecision, HookFailed

Outcome: TypeAlias = EnqueueDecision | HookFailed
Key: TypeAlias = bytes | tuple[bytes, int]

DECISIONS_MAX: Final = 10_000
HEADERS_BYTES_MAX: Final = 1024
"""Longer headers are not a key: such messages hardly ever have the same headers twice."""

CONFIG_KEYS_MAX: Final = 64
"""Above this, comparing the values would take as long as running the script."""

TRIED_MIN: Final = 4096
"""Messages after which it is known whether recalling pays."""
HITS_MIN: Final = 0.25


class Recall:
    """The decisions made before. ``get_config`` returns config values; scripts read the config through :meth:`read`."""

    def __init__(self, get_config: Callable[[str], str | None], *, active: bool, by_size: bool) -> None:
        self.active = active
        self._get_config = get_config
        self._by_size = by_size
        self._decisions: dict[Key, EnqueueDecision] = {}
        self._config: dict[str, str | None] = {}
        self._tried = self._hits = 0

    def read(self, key: str) -> str | None:
        """Return a value of the config; decisions depend on it from now on."""
        value = self._get_config(key)
        if self.active:
            self._config[key] = value
            if len(self._config) > CONFIG_KEYS_MAX:
                self.give_up()
        return value

    def give_up(self) -> None:
        """Forget all decisions, and recall nothing from here on."""
        self.active = False
        self._decisions.clear()
        self._config.clear()

    def decide(
        self,
        headers: Sequence[bytes],
        payload_sizes: Sequence[int],
        run: Callable[[Sequence[bytes], Sequence[int]], Sequence[Outcome]],
    ) -> list[Outcome]:
        """Return decisions for a batch. ``run`` makes the unknown ones, and may stop early: the list may be shorter."""
        if self._config:
            self._compare_config()
        keys = list(zip(headers, payload_sizes, strict=True)) if self._by_size else headers
        found: list[Outcome | None] = list(map(self._decisions.get, keys))
        missing = found.count(None)
        self._tried += len(found)
        self._hits += len(found) - missing
        if not missing:
            return found  # type: ignore[return-value]
        at = [index for index, decision in enumerate(found) if decision is None]
        made = run([headers[index] for index in at], [payload_sizes[index] for index in at])
        for index, outcome in zip(at, made, strict=False):
            found[index] = outcome
        self._learn([(keys[index], len(headers[index])) for index in at], made)
        return found[: at[len(made)]] if len(made) < len(at) else found  # type: ignore[return-value]

    def _learn(self, keys: Sequence[tuple[Key, int]], made: Sequence[Outcome]) -> None:
        if self._tried >= TRIED_MIN:
            if self._hits < self._tried * HITS_MIN:
                self.give_up()
            self._tried = self._hits = 0
        if not self.active:
            return
        if len(self._decisions) + len(made) > DECISIONS_MAX:
            self._decisions.clear()
        for (key, headers_bytes), outcome in zip(keys, made, strict=False):
            if type(outcome) is EnqueueDecision and headers_bytes <= HEADERS_BYTES_MAX:
                self._decisions[key] = outcome

    def _compare_config(self) -> None:
        for key, value in self._config.items():
            if self._get_config(key) != value:
                self._decisions.clear()
                self._config.clear()
                return
