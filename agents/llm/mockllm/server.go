// Package mockllm is a scripted mock of the model APIs of OpenAI, Anthropic and Gemini. With
// it, demos need no API key, and tests run real agents without network access.
//
// The server is stateless: an answer depends only on the request, so an agent that is resumed
// or replayed receives the same answers. The only exception are failures with a number of
// times, which are counted.
package mockllm

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"glasshouse/agents/llm"
)

// maxBody limits the body of a request, in bytes.
const maxBody = 32 << 20

// maxSeen limits the number of requests that are kept for Seen.
const maxSeen = 10_000

// A Server answers requests from a Script. It is an http.Handler and is safe for concurrent
// use.
type Server struct {
	script *Script
	log    *slog.Logger
	mux    *http.ServeMux

	mu sync.Mutex
	// +checklocks:mu
	failed map[[32]byte]int // number of failures, by hash of the request
	// +checklocks:mu
	seen []Seen
}

// A Seen is a request that the server has received.
type Seen struct {
	API          llm.API
	Path         string
	Model        string
	Stream       bool
	System       string
	User         string // the last user message
	Tools        []string
	Conversation string // name in the script; "aside": an auxiliary request outside of the script
	Turn         int    // index of the turn, from 0
	Body         []byte
}

// New returns a server for a script. log may be nil.
func New(s *Script, log *slog.Logger) *Server {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	m := &Server{script: s, log: log, mux: http.NewServeMux(), failed: map[[32]byte]int{}}
	m.mux.HandleFunc("POST /v1/chat/completions", m.speak(openAIChat))
	m.mux.HandleFunc("POST /v1/responses", m.speak(openAIResponses))
	m.mux.HandleFunc("POST /v1/messages", m.speak(anthropic))
	m.mux.HandleFunc("POST /v1beta/models/{call...}", m.gemini)
	m.mux.HandleFunc("POST /v1/messages/count_tokens", m.count)
	m.mux.HandleFunc("POST /v1/embeddings", m.embed)
	m.mux.HandleFunc("GET /v1/models", m.models)
	m.mux.HandleFunc("GET /v1beta/models", m.geminiModels)
	m.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") })
	return m
}

// ServeHTTP answers one request.
func (m *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.mux.ServeHTTP(w, r) }

// Seen returns the last 10000 requests, oldest first.
func (m *Server) Seen() []Seen {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Seen(nil), m.seen...)
}

// A T is the part of *testing.T that Start uses.
type T interface {
	Helper()
	Cleanup(func())
	Fatal(args ...any)
}

// Start serves a script on a loopback port until the test ends. It returns the server and its
// base URL, "http://127.0.0.1:PORT".
func Start(t T, s *Script) (m *Server, addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m = New(s, nil)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Serve(ctx, l)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return m, "http://" + l.Addr().String()
}

// Serve serves connections of l until ctx ends. It closes l.
func (m *Server) Serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{Handler: m, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(l); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// Providers returns the gateway configuration for a server at addr: one provider for each API.
func Providers(addr string, models ...string) []llm.Provider {
	if len(models) == 0 {
		models = []string{"fake-*"}
	}
	return []llm.Provider{
		{Name: "mock", API: llm.OpenAI, BaseURL: addr + "/v1", Models: models},
		{Name: "mock", API: llm.Anthropic, BaseURL: addr, Models: models},
		{Name: "mock", API: llm.Gemini, BaseURL: addr, Models: models},
	}
}

// A dialect decodes the requests and encodes the answers of one API.
type dialect struct {
	api      llm.API
	parse    func(body []byte) (*request, error)
	complete func(r *request, a answer) any
	stream   func(r *request, a answer) []event
	fail     func(status int, message string) any
}

// An event is a server-sent event.
type event struct {
	name string // may be empty
	data any    // encoded as JSON, except a string
}

func (m *Server) speak(d *dialect) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { m.answer(w, r, d, func(*request) {}) }
}

// answer handles one request. more can change the request after it was parsed.
func (m *Server) answer(w http.ResponseWriter, r *http.Request, d *dialect, more func(*request)) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		reply(w, http.StatusRequestEntityTooLarge, d.fail(http.StatusRequestEntityTooLarge, "the request is too large"))
		return
	}
	req, err := d.parse(body)
	if err != nil {
		reply(w, http.StatusBadRequest, d.fail(http.StatusBadRequest, "cannot parse the request: "+err.Error()))
		return
	}
	more(req)
	a, err := m.script.play(req)
	m.note(r, d, req, a, body, err)
	if err != nil {
		reply(w, http.StatusInternalServerError, d.fail(http.StatusInternalServerError, "script error: "+err.Error()))
		return
	}
	fail := m.failure(a.turn.Fail, r.URL.Path, body)
	if pause(r.Context(), time.Duration(a.turn.Delay)) != nil {
		return
	}
	switch {
	case fail.Status != 0:
		if fail.RetryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(fail.RetryAfter))
		}
		message := fail.Message
		if message == "" {
			message = "failure requested by the script"
		}
		reply(w, fail.Status, d.fail(fail.Status, message))
	case !req.stream:
		m.sendComplete(w, d.complete(req, a), fail)
	default:
		m.send(w, r, d.stream(req, a), a, fail)
	}
}

// failure returns the simulated failure for a request, which may be none, and counts it.
func (m *Server) failure(f *Fail, path string, body []byte) Fail {
	switch {
	case f == nil:
		return Fail{}
	case f.Times == 0:
		return *f
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := sha256.Sum256(append([]byte(path+"\n"), body...))
	if m.failed[sum] >= f.Times {
		return Fail{}
	}
	if len(m.failed) >= maxSeen {
		clear(m.failed)
	}
	m.failed[sum]++
	return *f
}

func (m *Server) note(r *http.Request, d *dialect, req *request, a answer, body []byte, err error) {
	s := Seen{
		API: d.api, Path: r.URL.Path, Model: req.model, Stream: req.stream, System: req.system,
		Conversation: a.from, Turn: a.nth, Body: body,
	}
	for _, i := range req.items {
		if i.role == user {
			s.User = i.text
		}
	}
	for _, t := range req.tools {
		s.Tools = append(s.Tools, t.name)
	}
	m.mu.Lock()
	if len(m.seen) >= maxSeen {
		m.seen = m.seen[1:]
	}
	m.seen = append(m.seen, s)
	m.mu.Unlock()
	if err != nil {
		m.log.Error("failed to evaluate the script", "conversation", a.from, "turn", a.nth, "error", err)
		return
	}
	m.log.Info("answered", "path", r.URL.Path, "model", req.model, "conversation", a.from, "turn", a.nth, "calls", len(a.calls))
}

func (m *Server) sendComplete(w http.ResponseWriter, body any, fail Fail) {
	switch {
	case fail.Malformed:
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"id": "broken`)
	case fail.CutAfter > 0:
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "1000")
		io.WriteString(w, `{"id": `)
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler) // closes the connection
	default:
		reply(w, http.StatusOK, body)
	}
}

// send sends an answer as server-sent events.
func (m *Server) send(w http.ResponseWriter, r *http.Request, events []event, a answer, fail Fail) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	out := http.NewResponseController(w)
	for i, e := range events {
		if i > 0 && pause(r.Context(), time.Duration(a.turn.Pace)) != nil {
			return
		}
		text, ok := e.data.(string)
		if !ok {
			b, err := json.Marshal(e.data)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			text = string(b)
		}
		if fail.Malformed && i == len(events)/2 {
			text = `{"broken": `
		}
		if e.name != "" {
			fmt.Fprintf(w, "event: %s\n", e.name)
		}
		fmt.Fprintf(w, "data: %s\n\n", text)
		if out.Flush() != nil {
			return
		}
		if fail.CutAfter > 0 && i+1 >= fail.CutAfter {
			panic(http.ErrAbortHandler)
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func reply(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(body)
}

// chunks splits a text into the chunks of a stream.
func (a answer) chunks(text string) []string {
	size := a.turn.Chunk
	if size <= 0 {
		size = 16
	}
	var parts []string
	runes := []rune(text)
	for len(runes) > 0 {
		n := min(size, len(runes))
		parts = append(parts, string(runes[:n]))
		runes = runes[n:]
	}
	return parts
}

// models lists the models in a format that the clients of OpenAI and Anthropic accept.
func (m *Server) models(w http.ResponseWriter, _ *http.Request) {
	list := []any{}
	for _, name := range m.script.Models {
		list = append(list, map[string]any{"id": name, "object": "model", "created": 0, "owned_by": "mock",
			"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"})
	}
	first, last := m.script.Models[0], m.script.Models[len(m.script.Models)-1]
	reply(w, http.StatusOK, map[string]any{"object": "list", "data": list, "has_more": false, "first_id": first, "last_id": last})
}

func (m *Server) geminiModels(w http.ResponseWriter, _ *http.Request) {
	list := []any{}
	for _, name := range m.script.Models {
		list = append(list, map[string]any{"name": "models/" + name, "displayName": name})
	}
	reply(w, http.StatusOK, map[string]any{"models": list})
}

// count estimates the number of tokens with four bytes per token.
func (m *Server) count(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		reply(w, http.StatusRequestEntityTooLarge, anthropic.fail(http.StatusRequestEntityTooLarge, "the request is too large"))
		return
	}
	reply(w, http.StatusOK, map[string]any{"input_tokens": (len(body) + 3) / 4})
}

// gemini handles requests of the Gemini API, which have model and method in the path.
func (m *Server) gemini(w http.ResponseWriter, r *http.Request) {
	model, action, _ := strings.Cut(r.PathValue("call"), ":")
	name := func(stream bool) func(*request) {
		return func(req *request) { req.model, req.stream = model, stream }
	}
	switch action {
	case "generateContent":
		m.answer(w, r, gemini, name(false))
	case "streamGenerateContent":
		m.answer(w, r, gemini, name(r.URL.Query().Get("alt") == "sse"))
	case "countTokens":
		n, _ := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxBody))
		reply(w, http.StatusOK, map[string]any{"totalTokens": (n + 3) / 4})
	default:
		reply(w, http.StatusNotFound, gemini.fail(http.StatusNotFound, "unknown method :"+action))
	}
}

// embed returns an embedding for each input.
func (m *Server) embed(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Model string          `json:"model"`
		Input json.RawMessage `json:"input"`
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = json.Unmarshal(body, &in)
	}
	if err != nil {
		reply(w, http.StatusBadRequest, openAIChat.fail(http.StatusBadRequest, "cannot parse the request"))
		return
	}
	var texts []string
	var one string
	if json.Unmarshal(in.Input, &one) == nil {
		texts = []string{one}
	} else if json.Unmarshal(in.Input, &texts) != nil {
		reply(w, http.StatusBadRequest, openAIChat.fail(http.StatusBadRequest, "input must be a string or a list of strings"))
		return
	}
	list := []any{}
	for i, text := range texts {
		list = append(list, map[string]any{"object": "embedding", "index": i, "embedding": vector(text)})
	}
	n := (len(in.Input) + 3) / 4
	reply(w, http.StatusOK, map[string]any{"object": "list", "model": in.Model, "data": list, "usage": map[string]any{"prompt_tokens": n, "total_tokens": n}})
}

// vector returns 8 numbers that depend only on the text.
func vector(text string) []float64 {
	sum := sha256.Sum256([]byte(text))
	v := make([]float64, 8)
	for i := range v {
		v[i] = float64(int(sum[i])-128) / 128
	}
	return v
}
