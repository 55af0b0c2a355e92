package fila

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// CodeConnectionLost is the code of an error without an answer: whether the request was carried out is not known.
const CodeConnectionLost = "CONNECTION_LOST"

const codeUnexpected = "UNEXPECTED_ANSWER"

// Error is an error of the broker with its code, or CodeConnectionLost if no answer came. Find it with errors.As.
type Error struct {
	Code    string
	Message string
	// Retryable says whether the same request may succeed later.
	Retryable bool
	// RetryAfter is the time to wait before that; 0 if the broker has not said it.
	RetryAfter time.Duration
	Details    map[string]interface{}
	// Results has, for a request for several, what became of each one, in order.
	Results []Result

	cause error
}

// Result is what became of one message or delivery of a request for several.
type Result struct {
	// ID is that of an enqueued message.
	ID string
	// Err is nil if it succeeded.
	Err *Error
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// Unwrap returns why no answer came, such as context.Canceled.
func (e *Error) Unwrap() error { return e.cause }

func lost(cause error) *Error {
	return &Error{Code: CodeConnectionLost, Message: "no answer: " + cause.Error(), Retryable: true, cause: cause}
}

// errorOf returns the error of an answer, also of one that a proxy has made.
func errorOf(status int, text []byte) *Error {
	if found := parseError(text); found != nil {
		return found
	}
	if len(text) > 200 {
		text = text[:200]
	}
	message := fmt.Sprintf("status %d: %s", status, text)
	return &Error{Code: codeUnexpected, Message: message, Retryable: status >= http.StatusInternalServerError}
}

// parseError returns the error in a body; nil if it is none.
func parseError(text []byte) *Error {
	var body struct {
		ErrorBody
		Results []json.RawMessage `json:"results"`
	}
	if json.Unmarshal(text, &body) != nil || body.Code == "" {
		return nil
	}
	found := &Error{
		Code:       body.Code,
		Message:    body.Message,
		Retryable:  body.Retryable,
		RetryAfter: seconds(body.RetryAfter),
		Details:    body.Details,
	}
	for _, each := range body.Results {
		var result Result
		var failed struct {
			Error json.RawMessage `json:"error"`
		}
		if json.Unmarshal(each, &result.ID) != nil && json.Unmarshal(each, &failed) == nil {
			result.Err = parseError(failed.Error)
		}
		found.Results = append(found.Results, result)
	}
	return found
}

func seconds(number float64) time.Duration {
	return time.Duration(number * float64(time.Second))
}
