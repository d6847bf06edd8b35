package llm

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"glasshouse/fault"
)

// A format is one kind of request of an API: its limits, how usage is read from the answer,
// and how errors are encoded.
type format struct {
	api     API
	name    string // for records
	path    string // relative to the provider's base; empty: derived from the model
	action  string // Gemini: suffix of the model
	streams bool   // always a stream
	free    bool   // not charged by providers

	limits   func(fields []field, a *ask) error // reads the limits of the answer
	complete func(t *tally, body []byte)        // counts a complete answer
	event    func(t *tally, ev sse)             // counts one event of a stream
	broken   func(t *tally, p problem) []byte   // ends a stream with an error
}

// A problem is an error in a form that an API can encode.
type problem struct {
	status  int
	kind    fault.Kind
	message string
	wait    time.Duration // 0: unknown
	spent   bool          // a budget is exhausted
}

// problemOf returns the problem that the caller sees. An error without a kind is internal and
// its text is not shown.
func problemOf(err error) problem {
	p := problem{kind: fault.KindOf(err), message: plain(err)}
	p.status = p.kind.Status()
	switch p.kind {
	case fault.Unsupported, fault.Mismatch:
		p.status = http.StatusBadRequest // clients repeat a request after a 501
	case "":
		p.message = "internal error of the model gateway; see the daemon's log"
	}
	if overdrawn(err) {
		p.status, p.spent = http.StatusPaymentRequired, true
	}
	if w, ok := waitOf(err); ok {
		p.wait = w
	}
	if remedy := fault.RemedyOf(err); remedy != "" {
		p.message += " (" + remedy + ")"
	}
	return p
}

// plain returns the message of an error without its operation.
func plain(err error) string {
	e, ok := errors.AsType[*fault.Error](err)
	if !ok || e.Err == nil {
		return err.Error()
	}
	detail := plain(e.Err)
	for _, of := range []string{e.Field, e.On} {
		if of != "" {
			detail = of + ": " + detail
		}
	}
	return detail
}

// refuse responds with an error. No part of the response may have been written.
func (f *format) refuse(w http.ResponseWriter, err error) {
	p := problemOf(err)
	if p.wait > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((p.wait+time.Second-1)/time.Second)))
	}
	if p.spent || p.status < 500 && p.status != http.StatusTooManyRequests && p.status != http.StatusConflict {
		w.Header().Set("X-Should-Retry", "false") // understood by the OpenAI and Anthropic SDKs
	}
	writeJSON(w, p.status, f.api.problem(p))
}

// problem encodes an error as the body that the API uses.
func (a API) problem(p problem) any {
	switch a {
	case Anthropic:
		return map[string]any{"type": "error", "error": map[string]any{"type": anthropicType(p), "message": p.message}}
	case Gemini:
		return map[string]any{"error": map[string]any{"code": p.status, "message": p.message, "status": geminiStatus(p)}}
	}
	return map[string]any{"error": openAIError(p)}
}

func openAIError(p problem) map[string]any {
	kind, code := "invalid_request_error", any(nil)
	switch {
	case p.spent:
		kind, code = "insufficient_quota", "insufficient_quota"
	case p.kind == fault.NotFound:
		code = "model_not_found"
	case p.status == http.StatusTooManyRequests:
		kind, code = "rate_limit_error", "rate_limit_exceeded"
	case p.status == http.StatusUnauthorized:
		kind = "authentication_error"
	case p.status == http.StatusForbidden:
		kind = "permission_error"
	case p.status >= 500:
		kind, code = "server_error", "server_error"
	}
	return map[string]any{"message": p.message, "type": kind, "param": nil, "code": code}
}

func anthropicType(p problem) string {
	switch {
	case p.spent:
		return "billing_error"
	case p.status == http.StatusServiceUnavailable:
		return "overloaded_error"
	}
	name := map[int]string{
		http.StatusUnauthorized: "authentication_error", http.StatusForbidden: "permission_error",
		http.StatusNotFound: "not_found_error", http.StatusRequestEntityTooLarge: "request_too_large",
		http.StatusTooManyRequests: "rate_limit_error", http.StatusGatewayTimeout: "timeout_error",
	}[p.status]
	switch {
	case name != "":
		return name
	case p.status < 500:
		return "invalid_request_error"
	}
	return "api_error"
}

func geminiStatus(p problem) string {
	if p.spent {
		return "RESOURCE_EXHAUSTED"
	}
	name := map[int]string{
		http.StatusUnauthorized: "UNAUTHENTICATED", http.StatusForbidden: "PERMISSION_DENIED",
		http.StatusNotFound: "NOT_FOUND", http.StatusConflict: "ABORTED", http.StatusTooManyRequests: "RESOURCE_EXHAUSTED",
		http.StatusServiceUnavailable: "UNAVAILABLE", http.StatusGatewayTimeout: "DEADLINE_EXCEEDED",
	}[p.status]
	switch {
	case name != "":
		return name
	case p.status < 500:
		return "INVALID_ARGUMENT"
	}
	return "INTERNAL"
}

// event encodes a server-sent event.
func event(name string, data any) []byte {
	text, err := json.Marshal(data)
	if err != nil {
		return nil // data has only strings and numbers, so this cannot happen
	}
	if name == "" {
		return fmt.Appendf(nil, "data: %s\n\n", text)
	}
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, text)
}
