"""What a shard has to do with the token bank, turn by turn: idle tokens and ended parks before the delivery, its wants behind it."""

from typing import TYPE_CHECKING

from fila_proto_zmq.commands import Grants, Tokens
from fila_worker.core.component import Component
from fila_worker.core.effects import Post
from fila_worker.core.enqueue.enqueue_rates import EnqueueRates

if TYPE_CHECKING:
    from fila_worker.core.model.state import State


class IdleTokens(Component):
    """Tokens that nobody uses, and throttle keys whose park ends."""

    def __init__(self, state: "State") -> None:
        super().__init__(state, state.token_client.idleness)

    def tick(self, now_ms: int) -> int | None:
        """Let the keys deliver again whose time is up, and take back tokens that lay idle."""
        self.state.unpark(now_ms)
        self.state.token_client.let_go(now_ms)
        return self.state.token_client.next_idle()

    def on_grants(self, grants: Grants, now_ms: int) -> None:
        """Let the lanes try again that got tokens."""
        self.state.wake(self.state.token_client.granted(grants, now_ms), now_ms)

    def on_session(self, now_ms: int) -> None:
        """Tokens that are held are void."""
        self.state.token_client.new_session(self.state.token_client.session + 1)


class BankRequests(Component):
    """What the token bank is told. It comes behind the delivery: then it is known what was spent, and what is lacking."""

    def __init__(self, state: "State") -> None:
        super().__init__(state, state.token_client.bank)

    def tick(self, now_ms: int) -> int | None:
        """Deal the tokens anew, and ask for those that are lacking."""
        state, client = self.state, self.state.token_client
        state.unblock(client.settle(now_ms))
        wants = client.repeat(now_ms) + client.wants(now_ms) + state.part(EnqueueRates).wants()
        if wants:
            state.effects.append(Post(Tokens(state.index, client.session, wants)))
        return client.next_settling()
