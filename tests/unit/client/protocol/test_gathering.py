"""Waiting for a batch of deliveries, without I/O."""

from tests.unit.client.peer import Peer, batch, give_up


class Gathered:
    def __init__(self, count=3, max_wait=0.5):
        self.peer = Peer()
        self.subscription = self.peer.session.subscribe("q", 10, self.peer.now, auto_extend=True)
        self.count, self.max_wait = count, max_wait
        self.leases = 0

    def wait(self):
        return self.peer.session.gather(self.subscription, self.count, self.max_wait, self.peer.now)

    def push(self, count):
        self.leases += 1
        self.peer.push("q", 1, batch(self.leases, count))

    def end(self):
        give_up(*self.subscription.ready)


def test_it_is_done_with_enough_deliveries():
    gathered = Gathered()
    gathering = gathered.wait()
    gathered.push(2)
    assert not gathering.done
    gathered.push(1)
    assert gathering.done
    assert gathered.wait().done
    gathered.end()


def test_it_is_done_a_while_after_the_first_one():
    gathered = Gathered()
    gathering = gathered.wait()
    gathered.peer.advance(1)
    gathered.peer.sent()
    gathered.push(1)
    assert gathered.peer.session.next_deadline() <= gathered.peer.now + 0.5
    gathered.peer.advance(0.4)
    gathered.push(1)
    gathered.peer.sent()
    assert not gathering.done
    gathered.peer.advance(0.1)
    gathered.peer.sent()
    assert gathering.done
    gathered.end()


def test_it_is_done_at_the_end_of_the_subscription():
    gathered = Gathered()
    gathering = gathered.wait()
    gathered.peer.session.unsubscribe(gathered.subscription, gathered.peer.now)
    assert gathering.done
    assert gathered.wait().done


def test_who_waits_no_longer_leaves_nothing():
    gathered = Gathered()
    gathering = gathered.wait()
    gathered.push(1)
    gathering.end()
    assert gathered.subscription.waiting == []
    gathered.peer.session.timers.tick(gathered.peer.now + 10)
    assert len(gathered.peer.session.timers) == 0
    gathered.end()


def test_it_is_done_when_its_caller_has_waited_for_long_enough():
    gathered = Gathered(count=1)
    gathering = gathered.peer.session.gather(gathered.subscription, 1, 0.0, gathered.peer.now, 2.0)
    assert gathered.peer.session.next_deadline() <= gathered.peer.now + 2
    gathered.peer.advance(1.9)
    gathered.peer.sent()
    assert not gathering.done
    gathered.peer.advance(0.1)
    gathered.peer.sent()
    assert gathering.done
    assert gathered.subscription.waiting == []


def test_a_delivery_ends_the_wait_and_its_timer():
    gathered = Gathered(count=1)
    gathering = gathered.peer.session.gather(gathered.subscription, 1, 0.0, gathered.peer.now, 2.0)
    gathered.push(1)
    assert gathering.done
    gathered.peer.session.timers.tick(gathered.peer.now + 10)
    assert len(gathered.peer.session.timers) == 0
    gathered.end()
