package egress

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"glasshouse/internal/text"
)

// A Reason states why a flow was refused or aborted. It is machine-readable.
type Reason string

const (
	ReasonHost      Reason = "host"      // the host is not allowed
	ReasonPort      Reason = "port"      // the port is not allowed for the host
	ReasonMethod    Reason = "method"    // the method is not allowed for the host
	ReasonPath      Reason = "path"      // the path is not allowed for the host
	ReasonDenied    Reason = "denied"    // refused by the Authority
	ReasonRate      Reason = "rate"      // too many requests
	ReasonBytes     Reason = "bytes"     // the byte budget is spent
	ReasonAddress   Reason = "address"   // the host has no permitted address
	ReasonName      Reason = "name"      // the client does not name a host
	ReasonMismatch  Reason = "mismatch"  // the client names different hosts
	ReasonMalformed Reason = "malformed" // malformed or ambiguous
	ReasonProtocol  Reason = "protocol"  // the protocol is not supported
	ReasonLimit     Reason = "limit"     // a limit on connections, sizes or times is exceeded
	ReasonSecret    Reason = "secret"    // a secret could not be injected, or could not be masked in the response
	ReasonTrust     Reason = "trust"     // the client does not trust the jail's certificate authority
	ReasonRules     Reason = "rules"     // the rules changed during the flow
	ReasonClosed    Reason = "closed"    // the proxy was closed during the flow

	// Reasons of allowed flows that failed:

	ReasonUpstream Reason = "upstream" // the server could not be reached, or closed the connection
	ReasonClient   Reason = "client"   // the client closed the connection
)

// A Record describes a flow or a refusal.
type Record struct {
	At   time.Time     `json:"at"` // start time
	Took time.Duration `json:"took_ns,omitempty"`
	Request
	Addr     string   `json:"addr,omitempty"`   // address of the server
	Status   int      `json:"status,omitempty"` // HTTP status sent to the client
	Sent     int64    `json:"sent,omitempty"`   // bytes from the jail
	Received int64    `json:"received,omitempty"`
	Rule     string   `json:"rule,omitempty"`    // the rule that decided
	Allowed  bool     `json:"allowed"`           // the request was allowed, even if it failed later
	Reason   Reason   `json:"reason,omitempty"`  // set if refused or aborted
	Detail   string   `json:"detail,omitempty"`  // human-readable
	Secrets  []string `json:"secrets,omitempty"` // names of the injected secrets
	Repeats  int      `json:"repeats,omitempty"` // number of similar refusals that were not recorded individually
}

// A Recorder stores records. Record is called synchronously at the end of each flow and must
// not block for long.
type Recorder interface {
	Record(Record)
}

// Stats are counters since the proxy was created.
type Stats struct {
	Open        int              `json:"open"` // currently open connections from the jail
	Connections int64            `json:"connections"`
	Requests    int64            `json:"requests"` // HTTP requests
	Queries     int64            `json:"queries"`  // DNS queries
	Sent        int64            `json:"sent"`     // bytes from the jail
	Received    int64            `json:"received"`
	Refused     map[Reason]int64 `json:"refused"`
}

// Stats returns the current counters.
func (p *Proxy) Stats() Stats {
	p.mu.Lock()
	open := len(p.visits)
	p.mu.Unlock()
	p.ledger.mu.Lock()
	defer p.ledger.mu.Unlock()
	return Stats{
		Open:        open,
		Connections: p.count.connections.Load(),
		Requests:    p.count.requests.Load(),
		Queries:     p.count.queries.Load(),
		Sent:        p.count.sent.Load(),
		Received:    p.count.received.Load(),
		Refused:     maps.Clone(p.ledger.refused),
	}
}

type counters struct {
	connections, requests, queries, sent, received atomic.Int64
}

// A refusal is an error with the reason why a request was refused.
type refusal struct {
	Reason Reason
	Rule   string // the rule that denies it, or the closest match
	Detail string
	Remedy string
	wait   time.Duration // earliest time for a retry
	code   int           // HTTP status, if not the default of the reason
}

func refuse(r Reason, rule, format string, args ...any) *refusal {
	return &refusal{Reason: r, Rule: rule, Detail: fmt.Sprintf(format, args...)}
}

// with sets the remedy and returns r.
func (r *refusal) with(remedy string) *refusal {
	r.Remedy = remedy
	return r
}

func (r *refusal) Error() string { return r.Detail }

// message formats the refusal as text for the agent.
func (r *refusal) message() string {
	var b strings.Builder
	fmt.Fprintf(&b, "glasshouse: refused (%s): %s\n", r.Reason, r.Detail)
	if r.Rule != "" {
		fmt.Fprintf(&b, "rule: %s\n", r.Rule)
	}
	if r.Remedy != "" {
		fmt.Fprintf(&b, "remedy: %s\n", r.Remedy)
	}
	return b.String()
}

// A ledger limits the number of refusals that are recorded individually, so that a jail cannot
// fill the disk with refused requests. Further refusals are only counted.
type ledger struct {
	mu sync.Mutex
	// +checklocks:mu
	refused map[Reason]int64
	room    *meter
	// +checklocks:mu
	more map[Reason]Record // the latest refusal of each reason that was not recorded
}

// refusalsPerSecond is the rate, and the burst, of individually recorded refusals.
const refusalsPerSecond = 50

// refused records a refusal.
func (p *Proxy) refused(ask Request, ref *refusal) {
	p.record(Record{At: time.Now(), Request: ask, Rule: ref.Rule, Reason: ref.Reason, Detail: ref.Detail})
}

// record passes a record to the Recorder.
func (p *Proxy) record(r Record) {
	r.Jail = p.conf.Jail
	r.Path = text.Clip(r.Path, 1024)
	r.Detail = text.Clip(r.Detail, 512)
	if !r.Allowed && !p.ledger.admit(r) {
		return
	}
	if p.conf.Recorder != nil {
		p.conf.Recorder.Record(r)
	}
}

func (l *ledger) admit(r Record) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused == nil {
		l.refused, l.more = map[Reason]int64{}, map[Reason]Record{}
		l.room = newMeter(Limit{Requests: refusalsPerSecond, Per: time.Second})
	}
	l.refused[r.Reason]++
	if l.room.request() == 0 {
		return true
	}
	r.Repeats = l.more[r.Reason].Repeats + 1
	l.more[r.Reason] = r
	return false
}

// flushLedger records the counts of refusals that were not recorded individually.
func (p *Proxy) flushLedger() {
	p.ledger.mu.Lock()
	more := p.ledger.more
	if len(more) > 0 {
		p.ledger.more = map[Reason]Record{}
	}
	p.ledger.mu.Unlock()
	if p.conf.Recorder != nil {
		for _, r := range more {
			p.conf.Recorder.Record(r)
		}
	}
}
