package api

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"glasshouse/id"
	"glasshouse/observe/report"
	"glasshouse/policy/chain"
	"glasshouse/policy/egress"
)

// networkHandler serves the network activity of jails, derived from their events and the audit log.
type networkHandler struct {
	recordings *recordings
	jails      Manager
	audit      *auditLog
	events     *eventHandler
	judges     recent[judgedPart, *judgements]
}

type connectionParams struct {
	ID id.Jail `path:"id"`
	period
	Limit int `query:"limit" minimum:"1" maximum:"1000" description:"Maximum number of hosts. Default 100."`
}

// listConnections responds with the hosts that a jail communicated with, and the egress decisions
// about them.
func (h *networkHandler) listConnections(w http.ResponseWriter, r *http.Request, p connectionParams) error {
	if _, err := readBody(w, r, &none{}); err != nil {
		return err
	}
	n, err := limit(p.Limit)
	if err != nil {
		return err
	}
	from, to, err := p.times(time.Now())
	if err != nil {
		return err
	}
	net, err := h.recordings.netLog(r.Context(), p.ID, from, to)
	if err != nil {
		return err
	}
	later, until, err := p.times(time.Now().Add(time.Hour))
	if err != nil {
		return err
	}
	absolute := later.Equal(from) && until.Equal(to) // the time range is absolute, so its entries can be cached
	judged, err := h.judged(r.Context(), judgedPart{p.ID, from, to}, absolute)
	if err != nil {
		return err
	}
	hosts := net.Hosts(maxHosts)
	out := struct {
		report.Hosts
		List []connectedHost `json:"items"`
		More int64           `json:"verdicts_more,omitempty"`
	}{More: judged.more, List: []connectedHost{}}
	for _, h := range hosts.List { // all hosts, because hosts without packets are found by comparison
		out.List = append(out.List, connectedHost{h, judged.take(string(h.Host))})
	}
	for _, host := range judged.order {
		if vs := judged.take(host); len(vs) > 0 {
			out.List = append(out.List, connectedHost{report.Host{Host: report.Text(host), Processes: []report.Who{}, Services: []report.Service{}}, vs})
			hosts.Count.N++
		}
	}
	hosts.Cut(n)
	out.Hosts, out.List = hosts, out.List[:min(n, len(out.List))]
	return writeJSON(w, http.StatusOK, out)
}

// maxHosts is the maximum number of hosts. A fold of package report has the same limit.
const maxHosts = 1 << 12

type connectedHost struct {
	report.Host
	Verdicts []verdict `json:"verdicts"`
}

// A verdict is an egress decision about a group of similar requests.
type verdict struct {
	Allowed  bool      `json:"allowed"`
	Kind     string    `json:"kind"`
	Port     uint16    `json:"port,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Rule     string    `json:"rule,omitempty"`
	Detail   string    `json:"detail,omitempty"`
	Count    int64     `json:"count"`
	Sent     int64     `json:"sent"`
	Received int64     `json:"received"`
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
	Entry    int64     `json:"entry"`
}

// judgements are the egress decisions about a jail, by host, read from the audit log.
type judgements struct {
	sem chan struct{} // capacity 1: a semaphore, held while entries are read

	after  int64 // number of the last entry that was read
	byHost map[string][]*verdict
	order  []string // hosts in order of appearance
	count  int      // number of verdicts
	more   int64    // decisions that exceed the limits of the lists
}

// A judgedPart identifies decisions about a jail in a time range.
type judgedPart struct {
	jail     id.Jail
	from, to time.Time
}

// maxJudgements is the size of the cache. An entry needs a few megabytes at most.
const maxJudgements = 16

// Limits on the hosts per jail, the verdicts per host, and the verdicts in total. A jail can
// contact any number of hosts, so the lists must be bounded.
const (
	mostJudged   = 4096
	mostVerdicts = 32
	mostAlike    = 4 * mostJudged
)

// judged returns the current egress decisions about a jail. If cached is true, it caches the
// result, and reads only the entries that were added since the previous call.
func (h *networkHandler) judged(ctx context.Context, p judgedPart, cached bool) (*judged, error) {
	if h.audit.chain == nil {
		return &judged{}, nil
	}
	if _, err := h.audit.flushed(ctx); err != nil {
		return nil, err
	}
	js := newJudgements()
	if cached {
		js = h.judges.of(p, newJudgements)
	}
	select {
	case js.sem <- struct{}{}:
		defer func() { <-js.sem }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if err := h.readNewEntries(ctx, p, js); err != nil {
		return nil, err
	}
	return js.now(), nil
}

func (h *networkHandler) readNewEntries(ctx context.Context, p judgedPart, js *judgements) error {
	q := chain.Query{Kinds: []chain.Kind{chain.Egress}, Jail: p.jail, From: p.from, Limit: 1000}
	if !p.to.IsZero() {
		q.Until = p.to.Add(time.Millisecond) // event times have millisecond resolution: include the last millisecond
	}
	for {
		q.After = js.after
		entries, err := h.audit.chain.Entries(ctx, q)
		if err != nil {
			return fmt.Errorf("read the network decisions of jail %s: %w", p.jail, err)
		}
		for _, e := range entries {
			var r egress.Record
			if json.Unmarshal(e.Body, &r) == nil {
				js.add(e.Seq, &r)
			}
			js.after = e.Seq
		}
		if len(entries) < q.Limit {
			return nil
		}
	}
}

func newJudgements() *judgements {
	return &judgements{sem: make(chan struct{}, 1), byHost: map[string][]*verdict{}}
}

func (js *judgements) add(entry int64, r *egress.Record) {
	host := strings.ToLower(r.Host)
	list, known := js.byHost[host]
	i := slices.IndexFunc(list, func(v *verdict) bool {
		return v.Allowed == r.Allowed && v.Reason == string(r.Reason) && v.Rule == r.Rule && v.Kind == string(r.Kind) && v.Port == r.Port
	})
	times := int64(1 + max(r.Repeats, 0))
	switch {
	case i < 0 && (len(list) >= mostVerdicts || js.count >= mostAlike || !known && len(js.order) >= mostJudged):
		js.more += times
		return
	case i < 0:
		if !known {
			js.order = append(js.order, host)
		}
		i = len(list)
		list = append(list, &verdict{Allowed: r.Allowed, Kind: string(r.Kind), Port: r.Port, Reason: string(r.Reason), Rule: r.Rule, First: r.At.UTC()})
		js.byHost[host] = list
		js.count++
	}
	v := list[i]
	v.Count += times
	v.Sent += r.Sent
	v.Received += r.Received
	v.Detail, v.Entry = cmp.Or(r.Detail, v.Detail), entry
	if at := r.At.Add(r.Took).UTC(); at.After(v.Last) {
		v.Last = at
	}
}

// judged is a snapshot of judgements.
type judged struct {
	byHost map[string][]verdict
	order  []string
	more   int64
}

func (js *judgements) now() *judged {
	out := &judged{byHost: make(map[string][]verdict, len(js.order)), order: slices.Clone(js.order), more: js.more}
	for host, list := range js.byHost {
		for _, v := range list {
			out.byHost[host] = append(out.byHost[host], *v)
		}
	}
	return out
}

// take returns the verdicts of a host, newest first, and removes them.
func (js *judged) take(host string) []verdict {
	host = strings.ToLower(host)
	list := js.byHost[host]
	delete(js.byHost, host)
	slices.SortStableFunc(list, func(a, b verdict) int { return cmp.Compare(b.Entry, a.Entry) })
	if list == nil {
		return []verdict{}
	}
	return list
}
