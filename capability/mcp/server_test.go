package mcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"glasshouse/capability/engine"
	"glasshouse/capability/mcp"
	"glasshouse/fault"
)

// A harness is the kernel as its caller sees it: a few capabilities and jails.
type harness struct {
	mu    sync.Mutex
	tools []mcp.Tool
	calls []string // "id input"
	asked chan struct{}
	jails map[string]map[string][]byte // files by path
}

func newHarness() *harness {
	return &harness{
		asked: make(chan struct{}, 16),
		jails: map[string]map[string][]byte{"j-1": {"/etc/motd": []byte("hello\n"), "/bin/x": {0xff, 0xfe}}},
		tools: []mcp.Tool{
			{ID: "places.search", Description: "Search for places.", Effects: []string{"network"},
				Input:  json.RawMessage(`{"type":"object","properties":{"query":{"type":"string"}},"required":["query"]}`),
				Output: json.RawMessage(`{"type":"object","properties":{"results":{"type":"array"}},"required":["results"]}`)},
			{ID: "math.double-it", Description: "Double a number.", Input: json.RawMessage(`{"type":"integer"}`), Output: json.RawMessage(`{"type":"integer"}`)},
			{ID: "any.thing", Description: "Whatever it is."},
			{ID: "always.refused", Effects: []string{"fs", "state"}},
			{ID: "always.broken"},
			{ID: "takes.forever"},
		},
	}
}

func (h *harness) List(context.Context) ([]mcp.Tool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.tools), nil
}

func (h *harness) Call(ctx context.Context, id string, input json.RawMessage) (json.RawMessage, error) {
	h.mu.Lock()
	h.calls = append(h.calls, id+" "+string(input))
	h.mu.Unlock()
	switch id {
	case "places.search":
		return json.RawMessage(`{"results":[]}`), nil
	case "math.double-it":
		return fmt.Append(nil, string(input)+string(input)), nil
	case "any.thing":
		return json.RawMessage(`[1,2]`), nil
	case "always.refused":
		return nil, &fault.Error{Op: "govern.Call", On: id, Kind: fault.Denied, Err: errors.New("no policy allows it"), Remedy: "ask for approval"}
	case "always.broken":
		return nil, errors.New("the password of the database is hunter2")
	case "fails.itself":
		return nil, &engine.Failure{Kind: engine.TimedOut, Reason: "it took longer than 5s"}
	case "takes.forever":
		h.asked <- struct{}{}
		<-ctx.Done()
		h.asked <- struct{}{}
		return nil, ctx.Err()
	}
	return nil, fault.Newf(fault.NotFound, "govern.Call", id, "there is none")
}

func (h *harness) called() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.calls)
}

// yard is the jails of a harness.
type yard struct{ *harness }

func (h yard) Create(_ context.Context, n mcp.NewJail) (mcp.Jail, error) {
	return mcp.Jail{ID: "j-2", Name: n.Name, State: "running", Image: n.Image}, nil
}

func (h yard) List(context.Context) ([]mcp.Jail, error) {
	return []mcp.Jail{{ID: "j-1", State: "running"}}, nil
}

func (h yard) Exec(_ context.Context, c mcp.Command) (mcp.Ended, error) {
	return mcp.Ended{ExitCode: 3, Stdout: strings.Join(c.Argv, " ")}, nil
}

func (h yard) Snapshot(_ context.Context, jail, name string) (mcp.Snapshot, error) {
	return mcp.Snapshot{ID: "s-1", Jail: jail, Name: name, Memory: true}, nil
}

func (h yard) Branch(_ context.Context, from string, count int) ([]mcp.Jail, error) {
	var all []mcp.Jail
	for i := range count {
		all = append(all, mcp.Jail{ID: fmt.Sprintf("%s.%d", from, i), State: "running"})
	}
	return all, nil
}

func (h yard) ReadFile(_ context.Context, jail, path string, offset, limit int64) ([]byte, int64, error) {
	data, ok := h.jails[jail][path]
	if !ok {
		return nil, 0, fault.Newf(fault.NotFound, "jail.ReadFile", jail, "there is no %s", path)
	}
	from := min(offset, int64(len(data)))
	return data[from:min(from+limit, int64(len(data)))], int64(len(data)), nil
}

func (h yard) WriteFile(_ context.Context, jail, path string, data []byte) error {
	h.jails[jail][path] = data
	return nil
}

func (h yard) Delete(_ context.Context, jail string) error {
	delete(h.jails, jail)
	return nil
}

// transports are the ways to a server.
var transports = map[string]func(t *testing.T, s *mcp.Server) (sdk.Transport, *sdk.ClientSessionOptions){
	"stdio": func(t *testing.T, s *mcp.Server) (sdk.Transport, *sdk.ClientSessionOptions) {
		return stdio(t, s), nil
	},
	"stdio with a handshake": func(t *testing.T, s *mcp.Server) (sdk.Transport, *sdk.ClientSessionOptions) {
		return stdio(t, s), &sdk.ClientSessionOptions{ProtocolVersion: "2025-11-25"}
	},
	"HTTP": func(t *testing.T, s *mcp.Server) (sdk.Transport, *sdk.ClientSessionOptions) {
		return &sdk.StreamableClientTransport{Endpoint: listen(t, s)}, nil
	},
	"HTTP with sessions": func(t *testing.T, s *mcp.Server) (sdk.Transport, *sdk.ClientSessionOptions) {
		return &sdk.StreamableClientTransport{Endpoint: listen(t, s)}, &sdk.ClientSessionOptions{ProtocolVersion: "2025-11-25"}
	},
}

// stdio serves on two pipes, as to a program that has started it.
func stdio(t *testing.T, s *mcp.Server) sdk.Transport {
	fromClient, toServer := io.Pipe()
	fromServer, toClient := io.Pipe()
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background(), fromClient, toClient) }()
	t.Cleanup(func() {
		toServer.Close()
		<-served
	})
	return &sdk.IOTransport{Reader: fromServer, Writer: toServer}
}

func listen(t *testing.T, s *mcp.Server) string {
	web := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		s.Close()
		web.Close()
	})
	return web.URL
}

// over runs a test with a client of each transport.
func over(t *testing.T, test func(t *testing.T, h *harness, s *mcp.Server, c *sdk.ClientSession)) {
	for name, transport := range transports {
		t.Run(name, func(t *testing.T) {
			h := newHarness()
			s := mcp.NewServer("1.0", h, yard{h})
			t.Cleanup(func() { s.Close() })
			way, options := transport(t, s)
			c, err := sdk.NewClient(&sdk.Implementation{Name: "client"}, nil).Connect(t.Context(), way, options)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			test(t, h, s, c)
		})
	}
}

func names(t *testing.T, c *sdk.ClientSession) []string {
	t.Helper()
	var all []string
	for tool, err := range c.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, tool.Name)
	}
	return all
}

// ask calls a tool and returns its text and its structured output.
func ask(t *testing.T, c *sdk.ClientSession, name string, args any) (said, structured string, failed bool) {
	t.Helper()
	r, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		t.Fatalf("%s = %v", name, err)
	}
	for _, part := range r.Content {
		said += part.(*sdk.TextContent).Text
	}
	if r.StructuredContent != nil {
		text, err := json.Marshal(r.StructuredContent)
		if err != nil {
			t.Fatal(err)
		}
		structured = string(text)
	}
	return said, structured, r.IsError
}

type args = map[string]any

func TestCapabilitiesAndJailsAreTools(t *testing.T) {
	over(t, func(t *testing.T, h *harness, s *mcp.Server, c *sdk.ClientSession) {
		want := []string{"always__broken", "always__refused", "any__thing",
			"jail_branch", "jail_create", "jail_delete", "jail_exec", "jail_list", "jail_read_file", "jail_snapshot", "jail_write_file",
			"math__double-it", "places__search", "takes__forever"}
		if diff := cmp.Diff(want, names(t, c)); diff != "" {
			t.Errorf("the tools are (-want +got):\n%s", diff)
		}
		said, structured, failed := ask(t, c, "places__search", args{"query": "coffee"})
		if failed || said != `{"results":[]}` || structured != `{"results":[]}` {
			t.Errorf("places__search says %q, structured %s, failed %t", said, structured, failed)
		}
		if diff := cmp.Diff([]string{`places.search {"query":"coffee"}`}, h.called()); diff != "" {
			t.Errorf("the kernel was called (-want +got):\n%s", diff)
		}
	})
}

func TestNonObjectsAreWrapped(t *testing.T) {
	over(t, func(t *testing.T, h *harness, s *mcp.Server, c *sdk.ClientSession) {
		if said, structured, failed := ask(t, c, "math__double-it", args{"input": 21}); failed || said != "2121" || structured != `{"result":2121}` {
			t.Errorf("math__double-it says %q, structured %s, failed %t", said, structured, failed)
		}
		if said, _, failed := ask(t, c, "math__double-it", args{"number": 21}); !failed || !strings.Contains(said, "must be an object with the single key input") {
			t.Errorf("with other arguments it says %q, failed %t", said, failed)
		}
		if said, structured, failed := ask(t, c, "any__thing", nil); failed || said != "[1,2]" || structured != `{"result":[1,2]}` {
			t.Errorf("any__thing says %q, structured %s, failed %t", said, structured, failed)
		}
		if diff := cmp.Diff([]string{"math.double-it 21", "any.thing {}"}, h.called()); diff != "" {
			t.Errorf("the kernel was called (-want +got):\n%s", diff)
		}
	})
}

func TestErrorsContainRemedies(t *testing.T) {
	over(t, func(t *testing.T, h *harness, s *mcp.Server, c *sdk.ClientSession) {
		said, _, failed := ask(t, c, "always__refused", nil)
		if want := "govern.Call: always.refused: denied: no policy allows it\nWhat can be done: ask for approval"; !failed || said != want {
			t.Errorf("a refusal says %q, failed %t, want %q", said, failed, want)
		}
		if said, _, failed := ask(t, c, "always__broken", nil); !failed || said != "internal error" {
			t.Errorf("what is internal says %q, failed %t", said, failed)
		}
		if _, err := c.CallTool(t.Context(), &sdk.CallToolParams{Name: "nobody__knows"}); err == nil {
			t.Errorf("a tool that is not there was called")
		}
	})
}

func TestFailedCapabilityReturnsItsError(t *testing.T) {
	over(t, func(t *testing.T, h *harness, s *mcp.Server, c *sdk.ClientSession) {
		h.mu.Lock()
		h.tools = append(h.tools, mcp.Tool{ID: "fails.itself"})
		h.mu.Unlock()
		// The list was not requested since then, so the call itself must look up the tool.
		if said, _, failed := ask(t, c, "fails__itself", nil); !failed || said != "timeout: it took longer than 5s" {
			t.Errorf("a failure says %q, failed %t", said, failed)
		}
	})
}

func TestCancelledCallEnds(t *testing.T) {
	over(t, func(t *testing.T, h *harness, s *mcp.Server, c *sdk.ClientSession) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			_, err := c.CallTool(ctx, &sdk.CallToolParams{Name: "takes__forever"})
			done <- err
		}()
		<-h.asked
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the call = %v, want it cancelled", err)
		}
		<-h.asked // the policy engine has received the call
	})
}

func TestCallsEndWithTheServer(t *testing.T) {
	over(t, func(t *testing.T, h *harness, s *mcp.Server, c *sdk.ClientSession) {
		go c.CallTool(t.Context(), &sdk.CallToolParams{Name: "takes__forever"})
		<-h.asked
		if err := s.Close(); err != nil {
			t.Logf("Close = %v", err) // error of the client side
		}
		<-h.asked
	})
}

// A client can end while the server sends it a message.
func TestServerEndsWithReaderOfItsOutput(t *testing.T) {
	for _, c := range []struct{ closed, want error }{{io.ErrClosedPipe, nil}, {&os.PathError{Op: "write", Err: syscall.EPIPE}, nil}, {syscall.ENOSPC, syscall.ENOSPC}} {
		in, client := io.Pipe()
		ended := make(chan error, 1)
		go func() {
			ended <- mcp.NewServer("1", newHarness(), nil).Serve(t.Context(), in, failingWriter{c.closed})
		}()
		if _, err := io.WriteString(client, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`+"\n"); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("Serve with an output that returns %v = %v, want %v", c.closed, err, c.want)
		}
		client.Close()
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }
func (w failingWriter) Close() error              { return nil }

func TestClientsAreNotifiedOfToolChanges(t *testing.T) {
	for name, transport := range transports {
		t.Run(name, func(t *testing.T) {
			h := newHarness()
			s := mcp.NewServer("1.0", h, nil)
			t.Cleanup(func() { s.Close() })
			told := make(chan struct{}, 16)
			way, options := transport(t, s)
			c, err := sdk.NewClient(&sdk.Implementation{Name: "client"}, &sdk.ClientOptions{
				ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) { told <- struct{}{} },
			}).Connect(t.Context(), way, options)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()

			h.mu.Lock()
			h.tools = h.tools[:1]
			h.tools[0].Description = "Search for other places."
			h.mu.Unlock()
			// A client may connect late: each change is reported.
			for waiting := true; waiting; {
				h.mu.Lock()
				h.tools[0].Description += "."
				h.mu.Unlock()
				if err := s.Refresh(t.Context()); err != nil {
					t.Fatal(err)
				}
				select {
				case <-told:
					waiting = false
				case <-time.After(20 * time.Millisecond):
				}
			}
			if diff := cmp.Diff([]string{"places__search"}, names(t, c)); diff != "" {
				t.Errorf("the tools are (-want +got):\n%s", diff)
			}
		})
	}
}

func TestJailsAreUsedThroughTools(t *testing.T) {
	over(t, func(t *testing.T, h *harness, s *mcp.Server, c *sdk.ClientSession) {
		for _, step := range []struct {
			tool string
			args args
			want string
		}{
			{"jail_create", args{"name": "work", "image": "python:3.12-slim"}, `{"id":"j-2","image":"python:3.12-slim","name":"work","state":"running"}`},
			{"jail_list", nil, `{"jails":[{"id":"j-1","state":"running"}]}`},
			{"jail_exec", args{"jail": "j-1", "argv": []string{"echo", "hi"}}, `{"exit_code":3,"stderr":"","stdout":"echo hi"}`},
			{"jail_snapshot", args{"jail": "j-1", "name": "before"}, `{"id":"s-1","jail":"j-1","memory":true,"name":"before"}`},
			{"jail_branch", args{"from": "s-1"}, `{"jails":[{"id":"s-1.0","state":"running"}]}`},
			{"jail_branch", args{"from": "j-1", "count": 2}, `{"jails":[{"id":"j-1.0","state":"running"},{"id":"j-1.1","state":"running"}]}`},
			{"jail_read_file", args{"jail": "j-1", "path": "/etc/motd"}, `{"content":"hello\n","encoding":"utf-8","size":6}`},
			{"jail_read_file", args{"jail": "j-1", "path": "/etc/motd", "offset": 1, "limit": 2}, `{"content":"el","encoding":"utf-8","more":true,"size":6}`},
			{"jail_read_file", args{"jail": "j-1", "path": "/bin/x"}, `{"content":"//4=","encoding":"base64","size":2}`},
			{"jail_write_file", args{"jail": "j-1", "path": "/new", "content": "AAE=", "encoding": "base64"}, `{"size":2}`},
			{"jail_read_file", args{"jail": "j-1", "path": "/new"}, `{"content":"\u0000\u0001","encoding":"utf-8","size":2}`},
			{"jail_delete", args{"jail": "j-1"}, `{}`},
		} {
			if said, structured, failed := ask(t, c, step.tool, step.args); failed || structured != step.want {
				t.Errorf("%s %v says %q, structured\n%s, want\n%s", step.tool, step.args, said, structured, step.want)
			}
		}
		said, _, failed := ask(t, c, "jail_read_file", args{"jail": "j-1", "path": "/etc/motd"})
		if !failed || !strings.Contains(said, "not found") {
			t.Errorf("a file of a jail that is gone says %q, failed %t", said, failed)
		}
		if said, _, failed := ask(t, c, "jail_exec", args{"jail": 5}); !failed || !strings.Contains(said, "arguments") {
			t.Errorf("arguments of another type say %q, failed %t", said, failed)
		}
	})
}

func TestCallerWithoutJailsSeesNoJails(t *testing.T) {
	h := newHarness()
	h.tools = append(h.tools, mcp.Tool{ID: "jail_list", Description: "not that of jails"})
	s := mcp.NewServer("1.0", h, yard{h})
	c := local(t, s)
	_, structured, _ := ask(t, c, "jail_list", nil)
	if structured != `{"jails":[{"id":"j-1","state":"running"}]}` || len(h.called()) != 0 {
		t.Errorf("a capability stands in the way of jail_list: %s", structured)
	}
	if all := names(t, local(t, mcp.NewServer("1.0", newHarness(), nil))); slices.ContainsFunc(all, func(n string) bool { return strings.HasPrefix(n, "jail_") }) {
		t.Errorf("the tools are %v, want none for jails", all)
	}
}

func local(t *testing.T, s *mcp.Server) *sdk.ClientSession {
	t.Helper()
	c, err := sdk.NewClient(&sdk.Implementation{Name: "client"}, nil).Connect(t.Context(), stdio(t, s), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestInvalidToolsAreOmitted(t *testing.T) {
	h := newHarness()
	h.tools = []mcp.Tool{
		{ID: "fine"},
		{ID: "Not.An.Id"},
		{ID: "no.json", Input: json.RawMessage(`{"type":`)},
		{ID: "no.schema", Input: json.RawMessage(``)},
		{ID: "with.headers", Input: json.RawMessage(`{"type":"object","properties":{"a":{"type":"object","x-mcp-header":"A"}}}`)},
	}
	if diff := cmp.Diff([]string{"fine"}, names(t, local(t, mcp.NewServer("1.0", h, nil)))); diff != "" {
		t.Errorf("the tools are (-want +got):\n%s", diff)
	}
}

func TestToolAnnotationsFollowEffects(t *testing.T) {
	c := local(t, mcp.NewServer("1.0", newHarness(), nil))
	type hints struct{ ReadOnly, Destructive, Open bool }
	want := map[string]hints{
		"places__search":  {false, true, true},
		"math__double-it": {true, false, false},
		"always__refused": {false, true, false},
	}
	got := map[string]hints{}
	for tool, err := range c.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := want[tool.Name]; ok {
			got[tool.Name] = hints{tool.Annotations.ReadOnlyHint, *tool.Annotations.DestructiveHint, *tool.Annotations.OpenWorldHint}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the hints are (-want +got):\n%s", diff)
	}
}

func TestLongCallsReportProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		s := mcp.NewServer("1.0", h, nil)
		defer s.Close()
		heard := make(chan string, 16)
		c, stop := connectPiped(t, s, heard)
		defer stop()
		ctx, cancel := context.WithCancel(t.Context())
		params := &sdk.CallToolParams{Name: "takes__forever"}
		params.SetProgressToken("p")
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c.CallTool(ctx, params)
		}()
		<-h.asked
		for _, want := range []string{"under way for 5s", "under way for 10s"} {
			if got := <-heard; got != want {
				t.Errorf("heard %q, want %q", got, want)
			}
		}
		cancel()
		<-ended
		<-h.asked
	})
}

func connectPiped(t *testing.T, s *mcp.Server, heard chan string) (*sdk.ClientSession, func()) {
	fromClient, toServer := io.Pipe()
	fromServer, toClient := io.Pipe()
	served := make(chan error, 1)
	go func() { served <- s.Serve(t.Context(), fromClient, toClient) }()
	c, err := sdk.NewClient(&sdk.Implementation{Name: "client"}, &sdk.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, p *sdk.ProgressNotificationClientRequest) { heard <- p.Params.Message },
	}).Connect(t.Context(), &sdk.IOTransport{Reader: fromServer, Writer: toServer}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c, func() {
		c.Close()
		toServer.Close()
		<-served
	}
}

func TestCrossOriginRequestsAreRejected(t *testing.T) {
	s := mcp.NewServer("1.0", newHarness(), nil)
	url := listen(t, s)
	host := strings.TrimPrefix(url, "http://")
	for _, c := range []struct {
		name, origin, host, session string
		want                        int
	}{
		{"a program", "", host, "", http.StatusOK},
		{"a page of the server's own", url, host, "", http.StatusOK},
		{"a page of elsewhere", "https://evil.example", host, "", http.StatusForbidden},
		{"a page of nowhere", "null", host, "", http.StatusForbidden},
		{"a page whose name was bound to this host", "http://evil.example", "evil.example", "", http.StatusForbidden},
		{"a session that nobody began", "", host, "stolen", http.StatusNotFound},
	} {
		body := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`
		r, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Host = c.host
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		if c.session != "" {
			r.Header.Set("Mcp-Session-Id", c.session)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		if answer.StatusCode != c.want {
			t.Errorf("%s is answered %d, want %d", c.name, answer.StatusCode, c.want)
		}
	}
}

func TestCapabilityListErrorIsReturned(t *testing.T) {
	c := local(t, mcp.NewServer("1.0", failingSource{}, nil))
	for _, err := range c.Tools(t.Context(), nil) {
		if err == nil || !strings.Contains(err.Error(), "list the capabilities") {
			t.Errorf("the list = %v, want why there is none", err)
		}
	}
}

type failingSource struct{}

func (failingSource) List(context.Context) ([]mcp.Tool, error) { return nil, os.ErrDeadlineExceeded }

func (failingSource) Call(context.Context, string, json.RawMessage) (json.RawMessage, error) {
	return nil, os.ErrInvalid
}
