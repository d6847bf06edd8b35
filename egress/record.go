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

// A Reason is why something was refused or came to its end, for programs.
type Reason string

const (
	ReasonHost      Reason = "host"      // not among the allowed
	ReasonPort      Reason = "port"      // not among those allowed at the host
	ReasonMethod    Reason = "method"    // not allowed at the host
	ReasonPath      Reason = "path"      // not allowed at the host
	ReasonDenied    Reason = "denied"    // by the Authority
	ReasonRate      Reason = "rate"      // too many requests
	ReasonBytes     Reason = "bytes"     // the budget is spent
	ReasonAddress   Reason = "address"   // the name leads to no address of the Internet
	ReasonName      Reason = "name"      // it is not said which host is meant
	ReasonMismatch  Reason = "mismatch"  // two hosts are named
	ReasonMalformed Reason = "malformed" // it can be read in more than one way, or in none
	ReasonProtocol  Reason = "protocol"  // nothing that is carried
	ReasonLimit     Reason = "limit"     // too much at once, too large or too slow
	ReasonSecret    Reason = "secret"    // a secret could not be put in, or not be kept from coming back
	ReasonTrust     Reason = "trust"     // the client does not trust the jail's certificate authority
	ReasonRules     Reason = "rules"     // they changed while it was carried
	ReasonClosed    Reason = "closed"    // the proxy was closed meanwhile

	// Allowed, but:

	ReasonUpstream Reason = "upstream" // the server could not be reached, or broke off
	ReasonClient   Reason = "client"   // the client broke off
)

// A Record says what was carried, or refused.
type Record struct {
	At   time.Time     `json:"at"` // when it began
	Took time.Duration `json:"took_ns,omitempty"`
	Request
	Addr     string   `json:"addr,omitempty"`   // that was connected to
	Status   int      `json:"status,omitempty"` // that the client was answered
	Sent     int64    `json:"sent,omitempty"`   // bytes from the jail
	Received int64    `json:"received,omitempty"`
	Rule     string   `json:"rule,omitempty"`    // that decided
	Allowed  bool     `json:"allowed"`           // what was asked, whatever came of it
	Reason   Reason   `json:"reason,omitempty"`  // if refused or broken off
	Detail   string   `json:"detail,omitempty"`  // for people
	Secrets  []string `json:"secrets,omitempty"` // names of those put in
	Repeats  int      `json:"repeats,omitempty"` // refusals of this reason like this one that were too many to be recorded each
}

// A Recorder keeps records. Record is called by whoever carries, when it is
// carried, and must not wait for long.
type Recorder interface {
	Record(Record)
}

// Stats are numbers since the proxy was made.
type Stats struct {
	Open        int              `json:"open"` // connections of the jail at this moment
	Connections int64            `json:"connections"`
	Requests    int64            `json:"requests"` // of HTTP
	Queries     int64            `json:"queries"`  // of DNS
	Sent        int64            `json:"sent"`     // bytes from the jail
	Received    int64            `json:"received"`
	Refused     map[Reason]int64 `json:"refused"`
}

// Stats returns the numbers of this moment.
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

// A refusal is the answer no, for people and for programs.
type refusal struct {
	Reason Reason
	Rule   string // that comes nearest to allowing it, or denies it
	Detail string
	Remedy string
	wait   time.Duration // after which it may be tried again
	code   int           // of HTTP, if not the usual one of the reason
}

func refuse(r Reason, rule, format string, args ...any) *refusal {
	return &refusal{Reason: r, Rule: rule, Detail: fmt.Sprintf(format, args...)}
}

// with returns r with a remedy.
func (r *refusal) with(remedy string) *refusal {
	r.Remedy = remedy
	return r
}

func (r *refusal) Error() string { return r.Detail }

// message is the refusal as it is told to the agent.
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

// A ledger bounds how many refusals are recorded one by one, so that a jail
// cannot fill the disk by being refused. The others are counted.
type ledger struct {
	mu sync.Mutex
	// +checklocks:mu
	refused map[Reason]int64
	room    *meter
	// +checklocks:mu
	more map[Reason]Record // the latest of those not recorded
}

// refusalsPerSecond are recorded one by one, and as many again at once.
const refusalsPerSecond = 50

// refused records that something was refused.
func (p *Proxy) refused(ask Request, ref *refusal) {
	p.keep(Record{At: time.Now(), Request: ask, Rule: ref.Rule, Reason: ref.Reason, Detail: ref.Detail})
}

// keep hands a record to the Recorder.
func (p *Proxy) keep(r Record) {
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

// flushLedger records how many refusals were not recorded one by one.
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
