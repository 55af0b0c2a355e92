package fila

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

const (
	// silenceMax is the longest silence of a stream: the broker sends something each ten seconds.
	silenceMax  = 30 * time.Second
	stopTimeout = 30 * time.Second
	backoffMax  = 5 * time.Second
	// errorMax is what the broker keeps of the error of a failed attempt.
	errorMax = 4096
	// lastTimeout is how long the last messages may take to go back when handlers are out of time.
	lastTimeout = 5 * time.Second
)

// Handler works on a message. Nil acks it, an error nacks it, and an error with an *Outcome settles it as that says. Its
// context ends when the lease has ended, or when the handler is out of time while the consumer stops.
type Handler func(ctx context.Context, delivery *Delivery) error

// Outcome is an error of a handler that says how its message ends. The token need not be given.
type Outcome struct {
	Settlement Settlement
}

func (o *Outcome) Error() string {
	return fmt.Sprintf("%s: %s", o.Settlement.Action, o.Settlement.Error)
}

// RetryAfter returns an error of a handler: deliver the message again after a time.
func RetryAfter(wait time.Duration, err error) error {
	return &Outcome{Settlement{Action: Retry, After: wait.Seconds(), Error: err.Error()}}
}

// FailForGood returns an error of a handler: dead-letter the message now.
func FailForGood(err error) error {
	return &Outcome{Settlement{Action: Fail, Error: err.Error()}}
}

// ConsumeOptions has the options of Consume. The zero value has the defaults.
type ConsumeOptions struct {
	// Concurrency is how many handlers run at a time; by default 1.
	Concurrency int
	// Prefetch is how many messages may be leased and unsettled, 1 to 500; by default Concurrency. After a lost connection,
	// those before it besides.
	Prefetch int
	// StopTimeout is how long running handlers may take when the context has ended; by default 30 seconds.
	StopTimeout time.Duration
	// BackoffMax is the longest wait before the stream is opened again; by default 5 seconds.
	BackoffMax time.Duration
	// OnSettled is called when the broker has confirmed how a delivery ended. Several goroutines may call it.
	OnSettled func(*Delivery, Settlement)
	// OnError is called with what went wrong and is tried again, and with settlements that failed: those messages are
	// delivered again. Several goroutines may call it.
	OnError func(error)
}

func (o ConsumeOptions) withDefaults() ConsumeOptions {
	if o.Concurrency == 0 {
		o.Concurrency = 1
	}
	if o.Prefetch == 0 {
		o.Prefetch = o.Concurrency
	}
	if o.StopTimeout == 0 {
		o.StopTimeout = stopTimeout
	}
	if o.BackoffMax == 0 {
		o.BackoffMax = backoffMax
	}
	if o.OnSettled == nil {
		o.OnSettled = func(*Delivery, Settlement) {}
	}
	if o.OnError == nil {
		o.OnError = func(error) {}
	}
	return o
}

// held is a delivery that was neither settled nor given back.
type held struct {
	delivery *Delivery
	lease    time.Duration
	// ctx is the handler's context.
	ctx    context.Context
	cancel context.CancelFunc

	mu       sync.Mutex
	until    time.Time
	renewing *time.Timer
}

// leasedUntil returns when its lease ends, if it is not renewed.
func (h *held) leasedUntil() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.until
}

type consumer struct {
	client  *Client
	queue   string
	handler Handler
	options ConsumeOptions
	settler *settler
	ready   chan *held
	// open counts what is held.
	open sync.WaitGroup

	mu   sync.Mutex
	held map[*held]struct{}
}

// Consume runs a handler for each message of a queue until the context ends, then stops in good order: nothing new is taken,
// handlers that run may end, what was not begun goes back. Leases are renewed meanwhile, and the stream is opened again after
// failures. It returns nil then, or an error that does not pass, such as one with the code QUEUE_NOT_FOUND.
func (c *Client) Consume(ctx context.Context, queue string, handler Handler, options ConsumeOptions) error {
	options = options.withDefaults()
	closing, closeSettler := context.WithCancel(detached{ctx})
	defer closeSettler()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	this := &consumer{
		client:  c,
		queue:   queue,
		handler: handler,
		options: options,
		settler: &settler{client: c, queue: queue, closing: closing},
		ready:   make(chan *held, options.Prefetch),
		held:    map[*held]struct{}{},
	}
	for number := 0; number < options.Concurrency; number++ {
		go this.workAll(ctx)
	}
	err := this.readAll(ctx)
	stop()
	this.finish(closeSettler)
	return err
}

func (c *consumer) readAll(ctx context.Context) error {
	failures := 0
	for ctx.Err() == nil {
		err := c.read(ctx, func() { failures = 0 })
		if ctx.Err() != nil {
			return nil
		}
		var pause time.Duration
		var failure *Error
		if errors.As(err, &failure) {
			if !failure.Retryable {
				return failure
			}
			pause = failure.RetryAfter
			c.options.OnError(failure)
		}
		if wait := backoff(failures, c.options.BackoffMax); wait > pause {
			pause = wait
		}
		failures++
		sleep(ctx, pause)
	}
	return nil
}

// read opens a stream and takes its deliveries until it ends; nil if that was in good order.
func (c *consumer) read(ctx context.Context, arrived func()) error {
	stream, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(silenceMax, cancel)
	defer silence.Stop()
	path := fmt.Sprintf("consume?prefetch=%d", c.options.Prefetch)
	response, err := c.client.open(stream, http.MethodGet, c.queue, path, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	for {
		line, err := lines.ReadBytes('\n')
		silence.Stop()
		if err != nil && len(line) == 0 && stream.Err() == nil && errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return lost(err)
		}
		if err := c.take(ctx, bytes.TrimSuffix(line, []byte("\n"))); err != nil {
			return err
		}
		arrived()
		silence.Reset(silenceMax)
	}
}

// take takes a line, and returns when there is room for another one.
func (c *consumer) take(ctx context.Context, line []byte) error {
	if len(line) == 0 {
		return nil
	}
	if failure := parseError(line); failure != nil {
		return failure
	}
	delivery := &Delivery{}
	if err := json.Unmarshal(line, delivery); err != nil {
		return lost(err)
	}
	lease := leaseOf(delivery)
	this := &held{delivery: delivery, lease: lease, until: time.Now().Add(lease)}
	this.ctx, this.cancel = context.WithCancel(detached{ctx})
	c.mu.Lock()
	c.held[this] = struct{}{}
	c.mu.Unlock()
	c.open.Add(1)
	c.renewLater(this)
	select {
	case c.ready <- this:
	case <-ctx.Done():
		go c.work(ctx, this)
	}
	return nil
}

func (c *consumer) workAll(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case this, open := <-c.ready:
			if !open {
				return
			}
			c.work(ctx, this)
		}
	}
}

func (c *consumer) work(ctx context.Context, this *held) {
	if this.ctx.Err() != nil { // its lease has ended
		return
	}
	if ctx.Err() != nil && this.delivery.Token != "" { // without one it was delivered at most once, and can't go back
		go c.settle(this, Settlement{Action: GiveBack})
		return
	}
	settlement := settlementOf(c.handler(this.ctx, this.delivery))
	if this.ctx.Err() == nil {
		go c.settle(this, settlement)
	}
}

func settlementOf(err error) Settlement {
	var outcome *Outcome
	if err == nil {
		return Settlement{Action: Ack}
	}
	if errors.As(err, &outcome) {
		return outcome.Settlement
	}
	text := err.Error()
	if len(text) > errorMax {
		text = text[:errorMax]
	}
	return Settlement{Action: Nack, Error: text}
}

// settle settles a delivery, which is not held any more then.
func (c *consumer) settle(this *held, settlement Settlement) {
	defer c.drop(this)
	if settlement.Token = this.delivery.Token; settlement.Token != "" {
		if err := c.settler.settle(settlement, this.leasedUntil); err != nil {
			c.options.OnError(err)
			return
		}
	}
	c.options.OnSettled(this.delivery, settlement)
}

// drop holds a delivery no longer. It returns whether it was held.
func (c *consumer) drop(this *held) bool {
	c.mu.Lock()
	_, was := c.held[this]
	delete(c.held, this)
	c.mu.Unlock()
	if was {
		this.mu.Lock()
		if this.renewing != nil {
			this.renewing.Stop()
		}
		this.mu.Unlock()
		this.cancel()
		c.open.Done()
	}
	return was
}

// renewLater renews a lease when half of it is over, for as long as the delivery is held.
func (c *consumer) renewLater(this *held) {
	if this.delivery.Token == "" {
		return
	}
	this.mu.Lock()
	defer this.mu.Unlock()
	this.renewing = time.AfterFunc(this.lease/2, func() { c.renew(this) })
}

func (c *consumer) renew(this *held) {
	sent := time.Now()
	renewal := Settlement{Token: this.delivery.Token, Action: Extend, Seconds: this.lease.Seconds()}
	err := c.settler.settle(renewal, this.leasedUntil)
	c.mu.Lock()
	_, is := c.held[this]
	c.mu.Unlock()
	var failure *Error
	if !is || (errors.As(err, &failure) && failure.Code == "ALREADY_SETTLED") { // it was settled meanwhile
		return
	}
	if err != nil {
		if c.drop(this) {
			c.options.OnError(err)
		}
		return
	}
	this.mu.Lock()
	this.until = sent.Add(this.lease)
	this.mu.Unlock()
	c.renewLater(this)
}

// finish gives back what was not begun, waits for the rest, and gives back what is left after that.
func (c *consumer) finish(closeSettler func()) {
	close(c.ready)
	var once []*held
	for this := range c.ready {
		if this.delivery.Token == "" {
			once = append(once, this)
		} else {
			go c.settle(this, Settlement{Action: GiveBack})
		}
	}
	go func() {
		for _, this := range once {
			c.work(c.settler.closing, this)
		}
	}()
	done := make(chan struct{})
	go func() {
		c.open.Wait()
		close(done)
	}()
	timer := time.NewTimer(c.options.StopTimeout)
	defer timer.Stop()
	select {
	case <-done:
		return
	case <-timer.C:
	}
	closeSettler()
	var left []Settlement
	c.mu.Lock()
	all := make([]*held, 0, len(c.held))
	for this := range c.held {
		all = append(all, this)
	}
	c.mu.Unlock()
	for _, this := range all {
		if c.drop(this) && this.delivery.Token != "" {
			left = append(left, Settlement{Token: this.delivery.Token, Action: GiveBack})
		}
	}
	if len(left) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastTimeout)
	defer cancel()
	if err := c.client.Settle(ctx, c.queue, left...); err != nil {
		c.options.OnError(err) // their leases end
	}
}

func leaseOf(delivery *Delivery) time.Duration {
	from, err := time.Parse(time.RFC3339Nano, delivery.LeasedAt)
	to, otherErr := time.Parse(time.RFC3339Nano, delivery.LeaseExpiresAt)
	if err != nil || otherErr != nil {
		return 0
	}
	return to.Sub(from)
}

// detached has the values of a context, but not its end: handlers end by themselves when a consumer stops.
type detached struct{ context.Context }

func (detached) Deadline() (time.Time, bool) { return time.Time{}, false }
func (detached) Done() <-chan struct{}       { return nil }
func (detached) Err() error                  { return nil }
