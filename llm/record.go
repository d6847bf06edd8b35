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

	"glasshouse/chain"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"
)

// An Outcome is how a call ended.
type Outcome string

const (
	Answered  Outcome = "answered"
	Failed    Outcome = "failed"    // the provider answered with an error, or not at all
	Broken    Outcome = "broken"    // its answer broke off
	Cut       Outcome = "cut"       // the budget was spent before the answer was whole
	Cancelled Outcome = "cancelled" // the caller went away
)

// A Call is what is recorded of one call of a model.
type Call struct {
	ID     id.LLMCall
	Caller Caller
	Hint   string // what the agent says its session is; nobody has checked that

	Format   string // "chat.completions"
	Model    string // as the caller called it
	Served   string // as the provider does
	Provider string
	Stream   bool

	Kept    bool // the caller's Journal knows it: it came with a key
	Free    bool // nothing was to be answered: tokens were counted
	Outcome Outcome
	Status  int    // of the provider's last answer; 0: there was none
	Problem string // what went wrong, in one line
	Retries int

	Usage  Usage
	Cost   int64 // millionths
	Priced bool  // the price of the model is known

	Began     time.Time
	Took      time.Duration
	FirstByte time.Duration // until the answer began; 0: it did not

	RequestDigest chain.Hash // of what the caller sent
	AnswerDigest  chain.Hash // of what he was sent
	Request       []byte     // its beginning, if Config.RecordBodies says so
	Answer        []byte
}

// maxText bounds what an entry of the chain holds of each body, as JSON.
const maxText = 24 << 10

// Entry is c as it is recorded in the chain.
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
		text = []byte("{}") // strings and numbers can be written
	}
	return chain.Entry{
		Kind: chain.LLMCalled, Parent: c.Caller.Parent, Jail: c.Caller.Jail, Session: c.Caller.Session, Run: c.Caller.Run,
		Agent: c.Caller.Agent, Body: text,
	}
}

// clip is the beginning of a body as text that takes at most so many bytes of JSON.
func clip(body []byte, longest int) string {
	body = body[:min(len(body), longest+utf8.UTFMax)] // Prefix looks at the character that is cut
	s := strings.ToValidUTF8(text.Prefix(string(body), longest), "\uFFFD")
	for {
		written, err := json.Marshal(s)
		if err == nil && len(written) <= longest {
			return s
		}
		s = text.Prefix(s, len(s)/2)
	}
}

// A Key is what usage is counted by.
type Key struct {
	Session string `json:"session,omitempty"`
	Run     string `json:"run,omitempty"`
	Branch  string `json:"branch,omitempty"`
	Model   string `json:"model,omitempty"` // as the caller called it
}

// A Total is what calls of one Key took.
type Total struct {
	Key
	Calls    int64 `json:"calls"`
	Usage    Usage `json:"usage"`
	Cost     int64 `json:"cost_micros"`
	Unpriced int64 `json:"unpriced,omitempty"` // calls of models whose price is not known
}

// maxTotals is how many keys are told apart. Beyond, those that were used longest ago
// are counted by their model only.
const maxTotals = 10_000

// meters counts what was used since the gateway was made.
type meters struct {
	mu sync.Mutex
	// +checklocks:mu
	all map[Key]*metered
	// +checklocks:mu
	tick int64
}

type metered struct {
	Total
	used int64 // at which tick it was last
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

// forget folds a tenth of the keys, those that were used longest ago, into their
// models'. The caller holds m.mu.
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

// Usage is what was used since the gateway was made, for each session, run, branch and
// model. The chain has the calls themselves, and those of before.
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

// Sum adds totals up by what by leaves of their keys: func(k Key) Key { return
// Key{Run: k.Run} } has one total for each run.
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

// notRecorded is what the caller learns when a record could not be kept.
func notRecorded() error {
	return &fault.Error{Op: "llm", Kind: fault.Unavailable, Remedy: "try again, and look at the daemon's log",
		Err: errors.New("the call could not be recorded, and is not answered")}
}
