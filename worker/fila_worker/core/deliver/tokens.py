"""The turns of a shard with the token bank: idle tokens and ended parks before the delivery, wants after it."""

from typing import TYPE_CHECKING

from fila_proto_zmq.commands import Grants, Tokens
from fila_worker.core.effects import Post
from fila_worker.core.enqueue.enqueue_rates import EnqueueRates
from fila_worker.core.model.component import Component

if TYPE_CHECKING:
    from fila_worker.core.model.state import State


class IdleTokens(Component):
    """Tokens that no lane uses, and throttle keys whose park ends."""

    def __init__(self, state: "State") -> None:
        super().__init__(state, state.token_client.idleness)

    def tick(self, now_ms: int) -> int | None:
        """Let keys deliver again when their park is over, and take back idle tokens."""
        self.state.unpark(now_ms)
        self.state.token_client.let_go(now_ms)
        return self.state.token_client.next_idle()

    def on_grants(self, grants: Grants, now_ms: int) -> None:
        """Let lanes that got tokens try again."""
        self.state.wake(self.state.token_client.granted(grants, now_ms), now_ms)

    def on_session(self, now_ms: int) -> None:
        """Begin a session: the tokens that are held are void."""
        self.state.token_client.new_session(self.state.token_client.session + 1)


class BankRequests(Component):
    """The reports and wants for the token bank. They come after the delivery, which spends tokens and finds some missing."""

    def __init__(self, state: "State") -> None:
        super().__init__(state, state.token_client.bank)

    def tick(self, now_ms: int) -> int | None:
        """Deal the tokens again, and ask for the missing ones."""
        state, client = self.state, self.state.token_client
        state.unblock(client.settle(now_ms))
        wants = client.repeat(now_ms) + client.wants(now_ms) + state.part(EnqueueRates).wants()
        if wants:
            state.effects.append(Post(Tokens(state.index, client.session, wants)))
        return client.next_settling()
