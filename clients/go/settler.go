package fila

import (
	"context"
	"errors"
	"math/rand"
	"sync"
	"time"
)

const (
	// together is the number of settlements of one request.
	together      = 500
	firstBackoff  = 100 * time.Millisecond
	settleBackoff = time.Second
)

// pending is a settlement that is not confirmed.
type pending struct {
	settlement Settlement
	// until returns when it need not be repeated any more: its lease has ended.
	until func() time.Time
	done  chan error
}

// settler sends the settlements of a queue, those that gather meanwhile together, and repeats those whose answers were lost.
type settler struct {
	client *Client
	queue  string
	// closing ends repetitions.
	closing context.Context

	mu      sync.Mutex
	pending []*pending
	sending bool
}

// settle returns when a settlement is confirmed; with an error if it is refused, or not confirmed while the lease lasts.
func (s *settler) settle(settlement Settlement, until func() time.Time) error {
	this := &pending{settlement: settlement, until: until, done: make(chan error, 1)}
	s.mu.Lock()
	s.pending = append(s.pending, this)
	if !s.sending {
		s.sending = true
		go s.sendAll()
	}
	s.mu.Unlock()
	return <-this.done
}

func (s *settler) sendAll() {
	failures := 0
	var again []*pending
	for {
		s.mu.Lock()
		s.pending = append(again, s.pending...)
		batch := s.pending
		if len(batch) > together {
			batch = batch[:together]
		}
		s.pending = append([]*pending(nil), s.pending[len(batch):]...)
		s.sending = len(batch) > 0
		s.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		if again = s.send(batch); len(again) == 0 {
			failures = 0
			continue
		}
		failures++
		sleep(s.closing, backoff(failures, settleBackoff))
	}
}

// send sends settlements in one request, and returns those to send again.
func (s *settler) send(batch []*pending) []*pending {
	settlements := make([]Settlement, 0, len(batch))
	for _, each := range batch {
		settlements = append(settlements, each.settlement)
	}
	err := s.client.Settle(s.closing, s.queue, settlements...)
	var failure *Error
	several := errors.As(err, &failure) && len(failure.Results) == len(batch)
	var again []*pending
	for index, each := range batch {
		result := err
		if several {
			result = nil
			if one := failure.Results[index].Err; one != nil {
				result = one
			}
		}
		if isRetryable(result) && s.closing.Err() == nil && time.Now().Before(each.until()) {
			again = append(again, each)
		} else {
			each.done <- result
		}
	}
	return again
}

func isRetryable(err error) bool {
	var failure *Error
	return errors.As(err, &failure) && failure.Retryable
}

// backoff returns how long to wait after so many failures: twice as long each time, less a random part, so that clients spread.
func backoff(failures int, max time.Duration) time.Duration {
	wait := max
	if failures < 16 && firstBackoff<<failures < max {
		wait = firstBackoff << failures
	}
	random := rand.New(rand.NewSource(time.Now().UnixNano())).Float64()
	return time.Duration(float64(wait) * (0.5 + random/2))
}

// sleep waits, but not longer than until the context ends.
func sleep(ctx context.Context, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
