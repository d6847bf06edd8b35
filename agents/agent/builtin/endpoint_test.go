package builtin_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
)

// A fakeEndpoint is an agent endpoint with a step log: a request with a key is executed once.
// The answers of its model depend on every byte of the request, so a request that is not
// repeated exactly changes the rest of the run.
type fakeEndpoint struct {
	mu       sync.Mutex
	goal     string
	context  int
	model    func(step int, body []byte) reply
	tool     func(n int, call toolCall) toolReply
	complete func(d *fakeEndpoint) string // returns the reason why the run may not finish yet, or ""
	gate     func(d *fakeEndpoint, r *http.Request) *refusal

	state      string
	stop       bool
	result     string
	failure    string
	checkpoint json.RawMessage
	written    int // number of checkpoints
	inbox      []string
	late       map[int]string // messages that arrive after this number of tool calls
	tools      []string
	newTool    map[int]string // tools that are added after this number of tool calls
	outbox     map[string]string
	asked      map[string]exchange // by key
	order      []string            // keys of the model requests
	journal    map[string]json.RawMessage
	effects    []string
	beats      int
	changed    []string // keys that were reused for a different request
	tokens     map[string]bool
}

type exchange struct{ body, answer []byte }

type reply struct {
	text   string
	calls  []toolCall
	finish string
	plain  bool   // without streaming
	raw    string // replaces the response body
	status int
}

type toolCall struct {
	Name string
	Args string
}

type toolReply struct {
	State  string `json:"state"`
	Output any    `json:"output,omitempty"`
	Error  any    `json:"error,omitempty"`
}

type refusal struct {
	status int
	after  string
	body   string
}

func newFakeEndpoint() *fakeEndpoint {
	return &fakeEndpoint{
		goal: "Count to three.", context: 4000, state: "active", tools: []string{"count", "look"},
		outbox: map[string]string{}, asked: map[string]exchange{}, journal: map[string]json.RawMessage{},
		late: map[int]string{}, newTool: map[int]string{}, tokens: map[string]bool{},
		tool: func(n int, c toolCall) toolReply { return toolReply{State: "done", Output: "did " + c.Name} },
	}
}

func (d *fakeEndpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tokens[r.Header.Get("Glasshouse-Token")] = true
	if d.gate != nil {
		if refused := d.gate(d, r); refused != nil {
			if refused.after != "" {
				w.Header().Set("Retry-After", refused.after)
			}
			w.WriteHeader(refused.status)
			io.WriteString(w, refused.body)
			return
		}
	}
	switch r.Method + " " + r.URL.Path {
	case "GET /run":
		d.say(w, map[string]any{"run": "r-1", "session": "sess-1", "goal": d.goal, "state": d.state, "model": "mock", "context_tokens": d.context, "inbox_after": 0, "checkpoint": d.last()})
	case "GET /run/tools":
		var tools []map[string]any
		for i := len(d.tools) - 1; i >= 0; i-- { // not sorted
			tools = append(tools, map[string]any{"name": d.tools[i], "kind": "exec", "description": "to " + d.tools[i], "input_schema": json.RawMessage(`{"type": "object",  "properties":{"z":{"maximum":12345678901234567890},"a":{}}}`)})
		}
		d.say(w, map[string]any{"tools": append(tools, map[string]any{"name": "no model takes this name"})})
	case "GET /run/inbox":
		after, _ := strconv.Atoi(r.URL.Query().Get("after"))
		messages := []any{}
		for i := after; i < len(d.inbox); i++ {
			messages = append(messages, map[string]any{"seq": i + 1, "from": "a person", "text": d.inbox[i], "labels": []string{}})
		}
		d.say(w, map[string]any{"messages": messages, "after": len(d.inbox)})
	case "POST /run/heartbeat":
		d.beats++
		d.say(w, map[string]any{"state": d.state, "stop": d.stop})
	case "POST /run/checkpoint":
		var in struct{ State json.RawMessage }
		json.Unmarshal(body, &in)
		if len(in.State) > 4<<20 {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		}
		d.checkpoint = rewritten(in.State)
		d.written++
		d.say(w, map[string]any{"checkpoint": "p-" + strconv.Itoa(d.written)})
	case "POST /run/messages":
		var in struct{ Text, Key string }
		json.Unmarshal(body, &in)
		if _, known := d.outbox[in.Key]; !known {
			d.outbox[in.Key] = in.Text
		}
		d.say(w, map[string]any{"id": "m-1"})
	case "POST /run/finish":
		var in struct{ Result, Key string }
		json.Unmarshal(body, &in)
		if terminal := d.state == "done" || d.state == "failed"; terminal {
			d.say(w, map[string]any{"state": d.state})
			return
		}
		if d.complete != nil {
			if why := d.complete(d); why != "" {
				w.WriteHeader(http.StatusConflict)
				d.say(w, map[string]any{"title": "conflict", "status": 409, "detail": why})
				return
			}
		}
		d.state, d.result = "done", in.Result
		d.say(w, map[string]any{"state": "done"})
	case "POST /run/fail":
		var in struct{ Error string }
		json.Unmarshal(body, &in)
		d.state, d.failure = "failed", in.Error
		d.say(w, map[string]any{"state": "failed"})
	case "POST /run/call":
		d.call(w, body)
	case "POST /v1/chat/completions":
		d.ask(w, r.Header.Get("Idempotency-Key"), body)
	default:
		http.NotFound(w, r)
	}
}

func (d *fakeEndpoint) say(w http.ResponseWriter, v any) { json.NewEncoder(w).Encode(v) }

// rewritten returns JSON as a database may return it: with other spaces and another order
// of keys.
func rewritten(raw json.RawMessage) json.RawMessage {
	var v any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if dec.Decode(&v) != nil {
		return raw
	}
	b, _ := json.MarshalIndent(v, "", " ")
	return b
}

func (d *fakeEndpoint) last() any {
	if d.checkpoint == nil {
		return nil
	}
	return map[string]any{"id": "p-" + strconv.Itoa(d.written), "state": d.checkpoint}
}

func (d *fakeEndpoint) call(w http.ResponseWriter, body []byte) {
	var in struct {
		Key, Tool string
		Input     json.RawMessage
	}
	if err := json.Unmarshal(body, &in); err != nil || in.Key == "" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	answer, known := d.journal[in.Key]
	if !known {
		d.effects = append(d.effects, fmt.Sprintf("%s %s %s", in.Key, in.Tool, in.Input))
		answer, _ = json.Marshal(d.tool(len(d.effects), toolCall{in.Tool, string(in.Input)}))
		d.journal[in.Key] = answer
		if text, ok := d.late[len(d.effects)]; ok {
			d.inbox = append(d.inbox, text)
		}
		if name, ok := d.newTool[len(d.effects)]; ok {
			d.tools = append(d.tools, name)
		}
	}
	w.Write(answer)
}

func (d *fakeEndpoint) ask(w http.ResponseWriter, key string, body []byte) {
	before, known := d.asked[key]
	if known && !bytes.Equal(before.body, body) {
		d.changed = append(d.changed, key)
	}
	if !known {
		step, _ := strconv.Atoi(strings.TrimPrefix(key, "m-"))
		re := d.model(step, body)
		if re.status != 0 {
			w.WriteHeader(re.status)
			io.WriteString(w, re.raw)
			return
		}
		before = exchange{body, re.bytes()}
		d.asked[key] = before
		d.order = append(d.order, key)
	}
	if bytes.HasPrefix(before.answer, []byte("{")) {
		w.Header().Set("Content-Type", "application/json")
	} else {
		w.Header().Set("Content-Type", "text/event-stream")
	}
	w.Write(before.answer)
}

// bytes returns the response body: a stream of small chunks, or one object.
func (re reply) bytes() []byte {
	if re.raw != "" {
		return []byte(re.raw)
	}
	finish := re.finish
	if finish == "" {
		finish = "stop"
	}
	var calls []any
	for i, c := range re.calls {
		calls = append(calls, map[string]any{"index": i, "id": "same", "type": "function", "function": map[string]any{"name": c.Name, "arguments": c.Args}})
	}
	if re.plain {
		b, _ := json.Marshal(map[string]any{"choices": []any{map[string]any{"index": 0, "message": map[string]any{"content": re.text, "tool_calls": calls}, "finish_reason": finish}}})
		return b
	}
	var b bytes.Buffer
	event := func(delta any, finish any) {
		line, _ := json.Marshal(map[string]any{"choices": []any{map[string]any{"index": 0, "delta": delta, "finish_reason": finish}}})
		fmt.Fprintf(&b, "data: %s\n\n", line)
	}
	event(map[string]any{"role": "assistant", "content": nil}, nil)
	for text := re.text; text != ""; {
		n := min(len(text), 7)
		for n < len(text) && text[n]&0xc0 == 0x80 {
			n++
		}
		event(map[string]any{"content": text[:n]}, nil)
		text = text[n:]
	}
	b.WriteString(": still there\n\n")
	for i, c := range re.calls {
		event(map[string]any{"tool_calls": []any{map[string]any{"index": i, "id": "same", "function": map[string]any{"name": c.Name, "arguments": ""}}}}, nil)
		for args := c.Args; args != ""; {
			n := min(len(args), 5)
			for n < len(args) && args[n]&0xc0 == 0x80 {
				n++
			}
			event(map[string]any{"tool_calls": []any{map[string]any{"index": i, "function": map[string]any{"arguments": args[:n]}}}}, nil)
			args = args[n:]
		}
	}
	event(map[string]any{}, finish)
	b.WriteString(`data: {"choices":[],"usage":{"prompt_tokens":1}}` + "\n\ndata: [DONE]\n\n")
	return b.Bytes()
}

// digest returns a number that depends on every byte of a request.
func digest(body []byte) uint32 {
	sum := sha256.Sum256(body)
	return uint32(sum[0])<<16 | uint32(sum[1])<<8 | uint32(sum[2])
}

// A cutTransport sends requests to an endpoint in the same process until it is cut.
type cutTransport struct {
	endpoint http.Handler
	cut      func() // called once, when the transport is cut

	mu sync.Mutex
	// +checklocks:mu
	left int // requests until the cut, without heartbeats; 0: never
	// +checklocks:mu
	how int // point of the cut, for example beforeRequest
	// +checklocks:mu
	dead bool
	// +checklocks:mu
	count int // requests, without heartbeats
}

// The points of a request at which an agent is killed.
const (
	beforeRequest  = iota // the endpoint does not receive the request
	afterRequest          // the endpoint executes the request
	duringResponse        // half of the response arrives
	cutPoints
)

var errDisconnected = fmt.Errorf("connection cut by the test")

func (c *cutTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	counted := r.URL.Path != "/run/heartbeat"
	last := false
	if counted && !c.dead {
		c.count++
		last = c.count == c.left
	}
	how := c.how
	dead := c.dead || last && how == beforeRequest
	if last {
		c.dead = true
	}
	c.mu.Unlock()
	if last {
		defer c.cut()
	}
	if dead {
		return nil, errDisconnected
	}
	rec := httptest.NewRecorder()
	c.endpoint.ServeHTTP(rec, r)
	resp := rec.Result()
	resp.Request = r
	if last {
		if how == afterRequest {
			return nil, errDisconnected
		}
		half := rec.Body.Bytes()[:rec.Body.Len()/2]
		resp.Body = io.NopCloser(io.MultiReader(bytes.NewReader(half), broken{}))
	}
	return resp, nil
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
