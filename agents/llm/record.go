package llm

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"
	"glasshouse/policy/chain"
)

// An Outcome is how a call ended.
type Outcome string

const (
	Answered        Outcome = "answered"
	Failed          Outcome = "failed"    // error or no response
	Truncated       Outcome = "broken"    // the answer was truncated
	BudgetExhausted Outcome = "cut"       // ended early because the budget was exhausted
	Cancelled       Outcome = "cancelled" // the caller disconnected
)

// A Call is the record of a model call.
type Call struct {
	ID     id.LLMCall
	Caller Caller
	Hint   string // the agent's name of its session, unverified

	Format   string // "chat.completions"
	Model    string // name in the request
	Served   string // the provider's name
	Provider string
	Stream   bool

	Kept    bool // has an idempotency key and is stored in the caller's Journal
	Free    bool // counting tokens, without an answer
	Outcome Outcome
	Status  int    // status of the provider's last response; 0: none
	Problem string // error, one line
	Retries int

	Usage  Usage
	Cost   int64 // millionths
	Priced bool  // the price of the model is known

	Began     time.Time
	Took      time.Duration
	FirstByte time.Duration // until the answer began; 0: it did not begin

	RequestDigest chain.Hash // hash of the original request
	AnswerDigest  chain.Hash // hash of the response sent to the caller
	Request       []byte     // its first Config.RecordBodies bytes
	Answer        []byte
}

// maxText is the maximum size of each body in an audit log entry, as JSON.
const maxText = 24 << 10

// Entry returns the audit log entry of c.
func (c Call) Entry() chain.Entry {
	body := map[string]any{
		"id": c.ID, "format": c.Format, "model": c.Model, "served": c.Served, "provider": c.Provider, "stream": c.Stream,
		"outcome": c.Outcome, "status": c.Status, "retries": c.Retries,
		"input_tokens": c.Usage.Input, "output_tokens": c.Usage.Output, "cache_read_tokens": c.Usage.CacheRead,
		"cache_write_tokens": c.Usage.CacheWrite, "reasoning_tokens": c.Usage.Reasoning, "estimated": c.Usage.Estimated,
		"cost_micros": c.Cost, "priced": c.Priced,
		"took_ms": c.Took.Milliseconds(), "first_byte_ms": c.FirstByte.Milliseconds(),
		"request_sha256": c.RequestDigest.String(), "answer_sha256": c.AnswerDigest.String(),
	}
	for name, text := range map[string]string{"branch": c.Caller.Branch, "untrusted_session": c.Hint, "problem": c.Problem,
		"request": clip(c.Request, maxText), "answer": clip(c.Answer, maxText)} {
		if text != "" {
			body[name] = text
		}
	}
	text, err := json.Marshal(body)
	if err != nil {
		text = []byte("{}") // cannot happen: it has only strings and numbers
	}
	return chain.Entry{
		Kind: chain.LLMCalled, Parent: c.Caller.Parent, Jail: c.Caller.Jail, Session: c.Caller.Session, Run: c.Caller.Run,
		Agent: c.Caller.Agent, Body: text,
	}
}

// clip returns the beginning of a body as text of at most longest bytes of JSON.
func clip(body []byte, longest int) string {
	body = body[:min(len(body), longest+utf8.UTFMax)] // Prefix needs the character at the cut
	s := strings.ToValidUTF8(text.Prefix(string(body), longest), "\uFFFD")
	for {
		written, err := json.Marshal(s)
		if err == nil && len(written) <= longest {
			return s
		}
		s = text.Prefix(s, len(s)/2)
	}
}

// A Key groups usage.
type Key struct {
	Session string `json:"session,omitempty"`
	Run     string `json:"run,omitempty"`
	Branch  string `json:"branch,omitempty"`
	Model   string `json:"model,omitempty"` // name in the request
}

// A Total is the usage of all calls with one Key.
type Total struct {
	Key
	Calls    int64 `json:"calls"`
	Usage    Usage `json:"usage"`
	Cost     int64 `json:"cost_micros"`
	Unpriced int64 `json:"unpriced,omitempty"` // calls of models without a known price
}

// maxTotals is the maximum number of keys. Above it, the least recently used keys are merged
// into their models.
const maxTotals = 10_000

// meters counts usage since the gateway was created.
type meters struct {
	mu sync.Mutex
	// +checklocks:mu
	all map[Key]*metered
	// +checklocks:mu
	tick int64
}

type metered struct {
	Total
	used int64 // tick of the last use
}

func (m *meters) add(c Call) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = map[Key]*metered{}
	}
	one := Total{Calls: 1, Usage: c.Usage, Cost: c.Cost}
	if !c.Priced {
		one.Unpriced = 1
	}
	m.count(Key{c.Caller.Session, c.Caller.Run, c.Caller.Branch, c.Model}, one)
	if len(m.all) > maxTotals {
		m.forget()
	}
}

// count adds t to the total of k. The caller holds m.mu.
//
// +checklocks:m.mu
func (m *meters) count(k Key, t Total) {
	at := m.all[k]
	if at == nil {
		at = &metered{Total: Total{Key: k}}
		m.all[k] = at
	}
	m.tick++
	at.used = m.tick
	at.Total = at.plus(t)
}

// forget merges the least recently used tenth of the keys into their models. The caller holds
// m.mu.
//
// +checklocks:m.mu
func (m *meters) forget() {
	old := make([]*metered, 0, len(m.all))
	for k, t := range m.all {
		if k != (Key{Model: k.Model}) {
			old = append(old, t)
		}
	}
	slices.SortFunc(old, func(a, b *metered) int { return cmp.Compare(a.used, b.used) })
	for _, t := range old[:min(len(old), maxTotals/10)] {
		delete(m.all, t.Key)
		m.count(Key{Model: t.Model}, t.Total)
	}
}

func (t Total) plus(u Total) Total {
	return Total{Key: t.Key, Calls: t.Calls + u.Calls, Usage: t.Usage.plus(u.Usage), Cost: t.Cost + u.Cost, Unpriced: t.Unpriced + u.Unpriced}
}

// Usage returns the usage since the gateway was created, by session, run, branch and model.
// The audit log has all calls, including earlier ones.
func (g *Gateway) Usage() []Total {
	g.meters.mu.Lock()
	defer g.meters.mu.Unlock()
	list := make([]Total, 0, len(g.meters.all))
	for _, t := range g.meters.all {
		list = append(list, t.Total)
	}
	sortTotals(list)
	return list
}

// Sum adds up the totals whose keys are equal after by, for example func(k Key) Key { return
// Key{Run: k.Run} } for one total per run.
func Sum(totals []Total, by func(Key) Key) []Total {
	sums := map[Key]Total{}
	for _, t := range totals {
		k := by(t.Key)
		s := sums[k]
		s.Key = k
		sums[k] = s.plus(t)
	}
	list := make([]Total, 0, len(sums))
	for _, t := range sums {
		list = append(list, t)
	}
	sortTotals(list)
	return list
}

func sortTotals(list []Total) {
	slices.SortFunc(list, func(a, b Total) int {
		return cmp.Or(cmp.Compare(a.Session, b.Session), cmp.Compare(a.Run, b.Run), cmp.Compare(a.Branch, b.Branch), cmp.Compare(a.Model, b.Model))
	})
}

// notRecorded returns the error that the caller sees if a call could not be recorded.
func notRecorded() error {
	return &fault.Error{Op: "llm.notRecorded", Kind: fault.Unavailable, Remedy: "retry, and check the daemon's log",
		Err: errors.New("the call could not be recorded, so its response is withheld")}
}
