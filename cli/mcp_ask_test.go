package cli

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/capability/mcp"
)

// An askingDaemon has one capability. A call of it waits until its approval is answered.
type askingDaemon struct {
	mu      sync.Mutex
	pending []wire.Approval
	answers chan wire.AnswerApproval
}

// older is a pending approval of an earlier call.
var older = wire.Approval{ID: "a-older", State: "pending", Question: wire.Question{Action: "call", Resource: "mail.send"}}

func (d *askingDaemon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	reply := func(v any) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(v)
	}
	mail := wire.Capability{ID: "mail.send", Version: "1.0.0", State: "approved"}
	path := strings.TrimPrefix(r.URL.Path, "/v1")
	switch {
	case path == "/capabilities":
		reply(wire.Page[wire.Capability]{Items: []wire.Capability{mail}})
	case path == "/capabilities/mail.send":
		reply(mail)
	case path == "/capabilities/mail.send/call":
		// The server detects a disconnect only after the body has been read.
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusTeapot)
			return
		}
		other := wire.Approval{ID: "a-other", State: "pending", Question: wire.Question{Action: "call", Resource: "mail.read"}}
		ours := wire.Approval{ID: "a-ours", State: "pending", What: "send a mail", Question: older.Question}
		ours.Created = time.Now().Add(-time.Hour) // the clocks of the two hosts differ
		d.mu.Lock()
		d.pending = []wire.Approval{older, other, ours}
		d.mu.Unlock()
		select {
		case a := <-d.answers:
			reply(wire.Called{Output: json.RawMessage(`"` + a.Answer + " " + a.Scope + " " + a.Reason + `"`)})
		case <-r.Context().Done():
			d.mu.Lock()
			d.pending = []wire.Approval{older}
			d.mu.Unlock()
		}
	case path == "/approvals":
		d.mu.Lock()
		pending := d.pending // replaced, never modified
		d.mu.Unlock()
		reply(wire.Page[wire.Approval]{Items: pending})
	case strings.HasPrefix(path, "/approvals/"):
		var a wire.AnswerApproval
		if err := json.NewDecoder(r.Body).Decode(&a); err != nil || path != "/approvals/a-ours" {
			http.Error(w, path, http.StatusTeapot)
			return
		}
		d.mu.Lock()
		d.pending = []wire.Approval{older}
		d.mu.Unlock()
		d.answers <- a
		reply(wire.Approval{ID: "a-ours", State: "answered"})
	default:
		http.NotFound(w, r)
	}
}

func TestMCPAsksClientUserAboutApprovals(t *testing.T) {
	d := &askingDaemon{pending: []wire.Approval{older}, answers: make(chan wire.AnswerApproval, 1)}
	web := httptest.NewServer(d)
	t.Cleanup(web.Close)
	cl, err := client.New(client.Options{Addr: web.URL, Token: "test"})
	if err != nil {
		t.Fatal(err)
	}
	connect := func(ask bool, o *sdk.ClientOptions) *sdk.ClientSession {
		s := mcp.NewServer("1.0", mcpCapabilities{cl, ask}, nil)
		t.Cleanup(func() { s.Close() })
		fromClient, toServer := io.Pipe()
		fromServer, toClient := io.Pipe()
		served := make(chan error, 1)
		go func() { served <- s.Serve(context.Background(), fromClient, toClient) }()
		here := &sdk.IOTransport{Reader: fromServer, Writer: toServer}
		c, err := sdk.NewClient(&sdk.Implementation{Name: "client"}, o).Connect(t.Context(), here, &sdk.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			c.Close()
			toServer.Close()
			<-served
		})
		return c
	}
	var asked []string
	c := connect(true, &sdk.ClientOptions{ElicitationHandler: func(_ context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
		asked = append(asked, r.Params.Message)
		return &sdk.ElicitResult{Action: "accept", Content: map[string]any{"decision": "allow", "reason": "fine"}}, nil
	}})
	r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "mail__send"})
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Content[0].(*sdk.TextContent).Text; got != `"allow once fine"` {
		t.Errorf("output = %s, want the answer of the user", got)
	}
	if len(asked) != 1 || !strings.Contains(asked[0], "send a mail") || !strings.Contains(asked[0], "a-ours") {
		t.Errorf("asked = %q, want the approval of this call only", asked)
	}

	// Without --ask, and if the user declines, the approval stays unanswered.
	for name, c := range map[string]*sdk.ClientSession{
		"not asked": connect(false, &sdk.ClientOptions{ElicitationHandler: func(context.Context, *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			t.Error("the user was asked without --ask")
			return &sdk.ElicitResult{Action: "accept"}, nil
		}}),
		"declined": connect(true, &sdk.ClientOptions{ElicitationHandler: func(context.Context, *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			return &sdk.ElicitResult{Action: "decline"}, nil
		}}),
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		r, err := c.CallTool(ctx, &sdk.CallToolParams{Name: "mail__send"})
		cancel()
		if err == nil {
			t.Errorf("%s: the call = %+v, want it to wait", name, r)
		}
	}
}
