// Package glasshousecall calls other capabilities from a program in a Glasshouse
// sandbox. It is one file without dependencies; copy it into your program.
//
//	var found struct{ Results []Place }
//	err := glasshousecall.Call(ctx, "places.resolve", map[string]any{"location_text": "Soho, London"}, &found)
//
// The policy engine evaluates each call. The caller is the capability that runs in
// this sandbox.
package glasshousecall

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
)

// An Error describes a failed call. Kind classifies the failure in one or two words, such as
// "denied" or "timeout".
type Error struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Kind + ": " + e.Message }

var client = &http.Client{Transport: &http.Transport{
	DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		path := os.Getenv("GLASSHOUSE_CALL_SOCKET")
		if path == "" {
			path = "/run/glasshouse/call.sock"
		}
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	},
}}

// Call calls a capability. It encodes input as JSON and decodes the result into output, which may
// be nil. If the call fails, the error is an *Error.
func Call(ctx context.Context, capability string, input, output any) error {
	body, err := json.Marshal(input)
	if err != nil {
		return fmt.Errorf("encode the input of %s: %w", capability, err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://sandbox/call/"+url.PathEscape(capability), bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("create the request for %s: %w", capability, err)
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(r)
	if err != nil {
		return fmt.Errorf("call %s: %w", capability, err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return fmt.Errorf("call %s: %w", capability, err)
	}
	if answer.StatusCode != http.StatusOK {
		e := &Error{Kind: "failed", Message: answer.Status}
		json.Unmarshal(text, e) // fields that the response lacks keep their values
		return e
	}
	if output == nil {
		return nil
	}
	if err := json.Unmarshal(text, output); err != nil {
		return fmt.Errorf("decode the output of %s: %w", capability, err)
	}
	return nil
}
