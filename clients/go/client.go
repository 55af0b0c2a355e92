// Package fila produces to and consumes from a fila-cluster broker, by its HTTP API.
package fila

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const defaultTimeout = 30 * time.Second

// Config has the options of a Client. The zero value has the defaults.
type Config struct {
	// APIKey is needed where the cluster has authentication.
	APIKey string
	// HTTPClient is used in place of http.DefaultClient. It must not have a Timeout, which would end streams.
	HTTPClient *http.Client
	// Timeout limits a request, besides its context; by default 30 seconds.
	Timeout time.Duration
}

// Client is a client of a broker's HTTP API. Goroutines may share it.
type Client struct {
	url    string
	config Config
}

// New returns a client of the broker at the address of its dashboard, such as http://127.0.0.1:8555.
func New(address string, config Config) *Client {
	if config.HTTPClient == nil {
		config.HTTPClient = http.DefaultClient
	}
	if config.Timeout == 0 {
		config.Timeout = defaultTimeout
	}
	return &Client{url: strings.TrimRight(address, "/"), config: config}
}

// Delivery is a message that is leased to the API key of the client.
type Delivery struct {
	DeliveryBody
	// Body is the payload as bytes, whether it came as text or not.
	Body []byte `json:"-"`
}

// UnmarshalJSON reads a delivery of the HTTP API.
func (d *Delivery) UnmarshalJSON(text []byte) error {
	if err := json.Unmarshal(text, &d.DeliveryBody); err != nil {
		return err
	}
	if d.Body = d.PayloadBase64; d.Body == nil {
		d.Body = []byte(d.Payload)
	}
	return nil
}

// Action is what a Settlement does.
type Action string

// The actions. Extend renews a lease, the others end it.
const (
	Ack      Action = "ack"
	Nack     Action = "nack"
	Retry    Action = "retry"
	Fail     Action = "fail"
	Defer    Action = "defer"
	GiveBack Action = "give_back"
	Extend   Action = "extend"
)

// Settlement ends or extends the lease of a delivery, by its token.
type Settlement struct {
	Token  string `json:"token"`
	Action Action `json:"action"`
	// Error says why, for Nack, Retry and Fail.
	Error string `json:"error,omitempty"`
	// Metadata is for the next attempt, with Nack and Retry.
	Metadata []byte `json:"metadata_base64,omitempty"`
	// Cost is what the work really cost.
	Cost *float64 `json:"cost,omitempty"`
	// After is for Retry, RetryAfter for Defer, Seconds for Extend; all in seconds.
	After      float64  `json:"after,omitempty"`
	RetryAfter *float64 `json:"retry_after,omitempty"`
	Seconds    float64  `json:"seconds,omitempty"`
}

// sentMessage is a message as it is sent: an empty payload is one, too.
type sentMessage struct {
	Message
	Payload *string `json:"payload,omitempty"`
}

func sent(message Message) sentMessage {
	if message.PayloadBase64 != nil || message.PayloadJSON != nil {
		return sentMessage{Message: message}
	}
	return sentMessage{Message: message, Payload: &message.Payload}
}

// Enqueue puts a message into a queue, and returns its id once it is durable. Give it a DedupID if you repeat a lost request.
func (c *Client) Enqueue(ctx context.Context, queue string, message Message) (string, error) {
	var answer struct {
		ID string `json:"id"`
	}
	err := c.post(ctx, queue, "messages", sent(message), &answer, 0)
	return answer.ID, err
}

// EnqueueMany puts up to 1,000 messages into a queue, and returns their ids once all are durable.
func (c *Client) EnqueueMany(ctx context.Context, queue string, messages []Message) ([]string, error) {
	body := struct {
		Messages []sentMessage `json:"messages"`
	}{}
	for _, each := range messages {
		body.Messages = append(body.Messages, sent(each))
	}
	var answer struct {
		IDs []string `json:"ids"`
	}
	err := c.post(ctx, queue, "messages", body, &answer, 0)
	return answer.IDs, err
}

// Receive leases up to max messages (1 to 500) that are ready, or the next ones that come while it waits, at most a minute.
func (c *Client) Receive(ctx context.Context, queue string, max int, wait time.Duration) ([]*Delivery, error) {
	body := map[string]interface{}{"max_messages": max, "wait": wait.Seconds()}
	var answer struct {
		Deliveries []*Delivery `json:"deliveries"`
	}
	err := c.post(ctx, queue, "receive", body, &answer, wait)
	return answer.Deliveries, err
}

// Settle settles up to 1,000 deliveries of a queue. The same settlement may be sent again.
func (c *Client) Settle(ctx context.Context, queue string, settlements ...Settlement) error {
	return c.post(ctx, queue, "settle", map[string]interface{}{"deliveries": settlements}, nil, 0)
}

// Scale says how many consumers drain a queue in a time.
func (c *Client) Scale(ctx context.Context, queue string, drain time.Duration) (Scale, error) {
	var answer Scale
	path := fmt.Sprintf("scale?drain=%g", drain.Seconds())
	err := c.ask(ctx, http.MethodGet, queue, path, nil, &answer, 0)
	return answer, err
}

func (c *Client) post(ctx context.Context, queue, operation string, body, answer interface{}, wait time.Duration) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return c.ask(ctx, http.MethodPost, queue, operation, text, answer, wait)
}

func (c *Client) ask(
	ctx context.Context, method, queue, path string, body []byte, answer interface{}, wait time.Duration,
) error {
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout+wait)
	defer cancel()
	response, err := c.open(ctx, method, queue, path, body)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return lost(err)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(text, answer)
}

// open sends a request, and returns its answer if it is no error. Its body must be closed.
func (c *Client) open(ctx context.Context, method, queue, path string, body []byte) (*http.Response, error) {
	address := c.url + "/queues/" + url.PathEscape(queue) + "/" + path
	request, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if c.config.APIKey != "" {
		request.Header.Set("Authorization", "Bearer "+c.config.APIKey)
	}
	response, err := c.config.HTTPClient.Do(request)
	if err != nil {
		return nil, lost(err)
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, lost(err)
	}
	return nil, errorOf(response.StatusCode, text)
}
