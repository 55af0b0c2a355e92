// The programs of the tests: "calls QUEUE" makes each call once, "worker QUEUE CONCURRENCY PREFETCH STOP_TIMEOUT" consumes until
// SIGTERM. A payload says what a handler does: {"sleep": ms, "fail": times}. Both print JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	fila "fila-cluster/clients/go"
)

func main() {
	client := fila.New(os.Getenv("FILA_HTTP"), fila.Config{})
	if os.Args[1] == "calls" {
		calls(client, os.Args[2])
	} else {
		work(client, os.Args[2], os.Args[3:])
	}
}

func calls(client *fila.Client, queue string) {
	ctx := context.Background()
	one, err := client.Enqueue(ctx, queue, fila.Message{
		PayloadJSON: map[string]int{"order": 17}, FairnessKey: "acme", Headers: map[string]string{"kind": "json"},
	})
	must(err)
	several, err := client.EnqueueMany(ctx, queue, []fila.Message{{}, {Payload: "grüße", Priority: 1}})
	must(err)
	scale, err := client.Scale(ctx, queue, 30*time.Second)
	must(err)
	taken, err := client.Receive(ctx, queue, 3, 5*time.Second)
	must(err)
	ack := fila.Settlement{Token: taken[0].Token, Action: fila.Ack}
	must(client.Settle(ctx, queue, ack,
		fila.Settlement{Token: taken[1].Token, Action: fila.Retry, After: 3600, Error: "later"},
		fila.Settlement{Token: taken[2].Token, Action: fila.GiveBack},
	))
	must(client.Settle(ctx, queue, ack))

	var failed []*fila.Error
	failing := func(err error) {
		var failure *fila.Error
		if errors.As(err, &failure) {
			failed = append(failed, failure)
		}
	}
	_, err = client.Enqueue(ctx, "no-such-queue", fila.Message{})
	failing(err)
	failing(client.Settle(ctx, queue, ack, fila.Settlement{Token: "none", Action: fila.Ack}))
	_, err = fila.New("http://127.0.0.1:1", fila.Config{}).Enqueue(ctx, queue, fila.Message{})
	failing(err)
	failing(client.Consume(ctx, "no-such-queue", func(context.Context, *fila.Delivery) error { return nil }, fila.ConsumeOptions{}))

	var deliveries, codes, results []interface{}
	for _, each := range taken {
		deliveries = append(deliveries, []interface{}{each.ID, string(each.Body), each.FairnessKey, each.Headers})
	}
	for _, each := range failed {
		codes = append(codes, []interface{}{each.Code, each.Retryable})
	}
	for _, each := range failed[1].Results {
		if each.Err == nil {
			results = append(results, nil)
		} else {
			results = append(results, each.Err.Code)
		}
	}
	show(map[string]interface{}{
		"ids": append([]string{one}, several...), "taken": deliveries, "pending": scale.Pending, "errors": codes, "results": results,
	})
}

func work(client *fila.Client, queue string, numbers []string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	options := fila.ConsumeOptions{Concurrency: number(numbers, 0), Prefetch: number(numbers, 1)}
	if len(numbers) > 2 {
		options.StopTimeout = time.Duration(number(numbers, 2)) * time.Second
	}
	options.OnSettled = func(delivery *fila.Delivery, settlement fila.Settlement) {
		tell("settled", map[string]interface{}{"id": delivery.ID, "action": settlement.Action})
	}
	options.OnError = func(err error) {
		tell("error", map[string]interface{}{"message": err.Error()})
	}
	must(client.Consume(ctx, queue, handle, options))
	tell("stopped", map[string]interface{}{})
}

func handle(ctx context.Context, delivery *fila.Delivery) error {
	tell("begun", map[string]interface{}{"id": delivery.ID, "attempts": delivery.Attempts, "error": delivery.Error})
	var work struct{ Sleep, Fail int }
	if err := json.Unmarshal(delivery.Body, &work); err != nil {
		return err
	}
	select {
	case <-time.After(time.Duration(work.Sleep) * time.Millisecond):
	case <-ctx.Done():
		return ctx.Err()
	}
	if delivery.Attempts < work.Fail {
		return errors.New("it failed on purpose")
	}
	return nil
}

var printing sync.Mutex

func tell(event string, more map[string]interface{}) {
	printing.Lock()
	defer printing.Unlock()
	more["event"], more["at"] = event, time.Now().UnixMilli()
	show(more)
}

func show(value interface{}) {
	text, err := json.Marshal(value)
	must(err)
	fmt.Println(string(text))
}

func number(texts []string, place int) int {
	value, err := strconv.Atoi(texts[place])
	must(err)
	return value
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
