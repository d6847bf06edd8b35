package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/internal/text"
	"glasshouse/policy"
	"glasshouse/policy/access"
	"glasshouse/policy/chain"
	"glasshouse/policy/chain/archive"
	"glasshouse/policy/chain/witness"
)

// Chain is the audit log (causal chain) as the API uses it. *chain.Chain implements it.
type Chain interface {
	Entries(ctx context.Context, q chain.Query) ([]chain.Entry, error)
	Entry(ctx context.Context, seq int64) (chain.Entry, error)
	Causes(ctx context.Context, seq int64) ([]chain.Entry, error)
	Verify(ctx context.Context) (chain.Report, error)
	VerifyAll(ctx context.Context) (chain.Report, error)
	Export(ctx context.Context, w io.Writer) (chain.Checkpoint, error)
	Prove(ctx context.Context, seq int64) (chain.Inclusion, error)
	ProveConsistency(ctx context.Context, earlier string) (chain.Consistency, error)
	Latest() chain.Checkpoint
	Last() int64
	Key() chain.PublicKey
}

var noChain = fault.Cannot("api.chain", "this daemon has no audit log", "start the daemon with glasshouse serve")

// auditLog reads and writes the audit log for handlers.
type auditLog struct {
	chain    Chain    // nil: none
	governor Governor // writes pending entries; nil: no policy engine
}

// flushed returns the chain after all finished operations are recorded in it.
func (a *auditLog) flushed(ctx context.Context) (Chain, error) {
	if a.chain == nil {
		return nil, noChain
	}
	if a.governor != nil {
		if err := a.governor.Flush(ctx); err != nil {
			return nil, err
		}
	}
	return a.chain, nil
}

// note records an action of the caller of ctx.
func (a *auditLog) note(ctx context.Context, kind chain.Kind, body map[string]string) {
	if a.governor != nil {
		a.governor.Note(kind, policy.Subject{Agent: access.CallerOf(ctx).Name}, 0, body)
	}
}

// chainHandler serves the routes of the audit log.
type chainHandler struct {
	audit     *auditLog
	witnessed func(ctx context.Context) ([]witness.Seen, error) // nil: this daemon is not in a fleet
	stored    StoredLogs                                        // nil: there is no object store
	fleet     Fleet                                             // nil: this daemon is not in a fleet
}

// StoredLogs are the copies of the audit logs of a fleet. *archive.Archive implements it.
type StoredLogs interface {
	Logs(ctx context.Context) ([]archive.Log, error)
	Export(ctx context.Context, node string, w io.Writer) error
}

type listChainEntries struct {
	Limit      int        `query:"limit" minimum:"1" maximum:"1000" description:"Maximum number of items per page. Default 100."`
	After      int64      `query:"after" minimum:"0" description:"The 'next' value of the previous page."`
	Session    string     `query:"session" description:"Only entries of this session."`
	Run        string     `query:"run" description:"Only entries of this run."`
	Jail       id.Jail    `query:"jail" description:"Only entries of this jail."`
	Capability string     `query:"capability" description:"Only entries of this capability."`
	Kind       string     `query:"kind" description:"Only entries of these kinds, separated by commas, such as decision,egress."`
	Parent     int64      `query:"parent" minimum:"0" description:"Only direct effects of this entry."`
	Under      int64      `query:"under" minimum:"0" description:"Only direct and indirect effects of this entry."`
	From       *time.Time `query:"from" description:"Start of the time range, inclusive."`
	Until      *time.Time `query:"until" description:"End of the time range, exclusive."`
	Newest     bool       `query:"newest" description:"List the newest entries first. Default: oldest first."`
}

func (p listChainEntries) query() (chain.Query, error) {
	q := chain.Query{
		Session: p.Session, Run: p.Run, Jail: p.Jail, Capability: p.Capability, Parent: p.Parent, Under: p.Under,
		Newest: p.Newest, After: p.After, Limit: p.Limit,
	}
	if q.Limit == 0 {
		q.Limit = 100
	}
	if p.From != nil {
		q.From = *p.From
	}
	if p.Until != nil {
		q.Until = *p.Until
	}
	for k := range strings.SplitSeq(p.Kind, ",") {
		if k == "" {
			continue
		}
		if !chain.Kind(k).Known() {
			return q, fault.Fieldf("api.query", "kind", "%q is not an entry kind", text.Clip(k, 64))
		}
		q.Kinds = append(q.Kinds, chain.Kind(k))
	}
	return q, nil
}

func (h *chainHandler) listChainEntries(ctx context.Context, p listChainEntries, _ none) (wire.Page[wire.ChainEntry], error) {
	page := wire.Page[wire.ChainEntry]{Items: []wire.ChainEntry{}}
	c, err := h.audit.flushed(ctx)
	if err != nil {
		return page, err
	}
	q, err := p.query()
	if err != nil {
		return page, err
	}
	entries, err := c.Entries(ctx, q)
	if err != nil {
		return page, err
	}
	for _, e := range entries {
		page.Items = append(page.Items, entryOf(e))
	}
	if len(entries) == q.Limit {
		page.Next = fmt.Sprint(entries[len(entries)-1].Seq)
	}
	return page, nil
}

func entryOf(e chain.Entry) wire.ChainEntry {
	return wire.ChainEntry{
		Seq: e.Seq, Time: e.Time.UTC().Format("2006-01-02T15:04:05.000Z"), Kind: string(e.Kind), Parent: e.Parent,
		Jail: string(e.Jail), Session: e.Session, Run: e.Run, Capability: e.Capability, Agent: e.Agent,
		Body: e.Body, Prev: e.Prev.String(), Hash: e.Hash.String(),
	}
}

type oneEntry struct {
	Seq string `path:"seq"`
}

func (p oneEntry) number() (int64, error) {
	n, err := strconv.ParseInt(p.Seq, 10, 64)
	if err != nil || n < 1 {
		return 0, fault.Newf(fault.NotFound, "api.number", text.Visible(text.Clip(p.Seq, 64)), "no such entry")
	}
	return n, nil
}

func (h *chainHandler) getChainEntry(ctx context.Context, p oneEntry, _ none) (wire.ChainEntry, error) {
	c, err := h.audit.flushed(ctx)
	if err != nil {
		return wire.ChainEntry{}, err
	}
	seq, err := p.number()
	if err != nil {
		return wire.ChainEntry{}, err
	}
	e, err := c.Entry(ctx, seq)
	if err != nil {
		return wire.ChainEntry{}, err
	}
	return entryOf(e), nil
}

func (h *chainHandler) listChainCauses(ctx context.Context, p oneEntry, _ none) (wire.Page[wire.ChainEntry], error) {
	page := wire.Page[wire.ChainEntry]{Items: []wire.ChainEntry{}}
	c, err := h.audit.flushed(ctx)
	if err != nil {
		return page, err
	}
	seq, err := p.number()
	if err != nil {
		return page, err
	}
	causes, err := c.Causes(ctx, seq)
	if err != nil {
		return page, err
	}
	for _, e := range causes {
		page.Items = append(page.Items, entryOf(e))
	}
	return page, nil
}

func (h *chainHandler) getChainHead(ctx context.Context, _ none, _ none) (wire.ChainHead, error) {
	c, err := h.audit.flushed(ctx)
	if err != nil {
		return wire.ChainHead{}, err
	}
	return wire.ChainHead{Entries: c.Last(), Key: c.Key().String(), Checkpoint: c.Latest().Note}, nil
}

type verifyChain struct {
	All bool `query:"all" description:"Verify from the first entry. Default: from the last verified entry."`
}

func (h *chainHandler) verifyChain(ctx context.Context, p verifyChain, _ none) (wire.ChainReport, error) {
	c, err := h.audit.flushed(ctx)
	if err != nil {
		return wire.ChainReport{}, err
	}
	verify := c.Verify
	if p.All {
		verify = c.VerifyAll
	}
	r, err := verify(ctx)
	if err != nil {
		return wire.ChainReport{}, err
	}
	w := wire.ChainReport{Entries: r.Entries, Checkpoints: r.Checkpoints, Signed: r.Signed, Key: r.Key, KeyGiven: r.KeyGiven}
	if r.Bad != nil {
		w.Bad = &wire.ChainBad{Seq: r.Bad.Seq, Line: r.Bad.Line, Reason: r.Bad.Reason}
	}
	return w, nil
}

type exportChainParams struct {
	Stored string `query:"stored" description:"Name or ID of a node of the fleet: export the copy of its log in the object store. A node that was removed has only its ID."`
}

func (h *chainHandler) exportChain(w http.ResponseWriter, r *http.Request, p exportChainParams) error {
	export := func(ctx context.Context, w io.Writer) error { return h.exportStored(ctx, p.Stored, w) }
	switch {
	case p.Stored == "":
		c, err := h.audit.flushed(r.Context())
		if err != nil {
			return err
		}
		export = func(ctx context.Context, w io.Writer) error {
			_, err := c.Export(ctx, w)
			return err
		}
	case h.stored == nil:
		return fault.Cannot("api.exportChain", "the daemon copies no audit logs to an object store", "set gateway.objects")
	}
	w.Header().Set("Content-Type", lineKind)
	w.Header().Set("Content-Disposition", `attachment; filename="chain.jsonl"`)
	if err := export(r.Context(), w); err != nil {
		return fmt.Errorf("export the audit log: %w", err)
	}
	return nil
}

func (h *chainHandler) exportStored(ctx context.Context, node string, w io.Writer) error {
	if h.fleet != nil {
		n, err := h.fleet.Node(ctx, node)
		switch {
		case err == nil:
			node = n.ID
		case !errors.Is(err, fault.NotFound): // it may have been removed
			return err
		}
	}
	if h.fleet == nil || node != h.fleet.Self() {
		if err := mayForward(ctx, node); err != nil {
			return err
		}
	}
	return h.stored.Export(ctx, node, w)
}

func (h *chainHandler) getChainProof(ctx context.Context, p oneEntry, _ none) (wire.ChainProof, error) {
	c, err := h.audit.flushed(ctx)
	if err != nil {
		return wire.ChainProof{}, err
	}
	seq, err := p.number()
	if err != nil {
		return wire.ChainProof{}, err
	}
	proof, err := c.Prove(ctx, seq)
	if err != nil {
		return wire.ChainProof{}, err
	}
	return wire.ChainProof{Entry: entryOf(proof.Entry), Path: pathOf(proof.Path), Checkpoint: proof.Checkpoint}, nil
}

func (h *chainHandler) getChainConsistency(ctx context.Context, _ none, b wire.ChainFrom) (wire.ChainConsistency, error) {
	c, err := h.audit.flushed(ctx)
	if err != nil {
		return wire.ChainConsistency{}, err
	}
	proof, err := c.ProveConsistency(ctx, b.Checkpoint)
	if err != nil {
		return wire.ChainConsistency{}, err
	}
	return wire.ChainConsistency{From: proof.From, To: proof.To, Path: pathOf(proof.Path)}, nil
}

func (h *chainHandler) listWitnessed(ctx context.Context, _, _ none) (wire.Page[wire.WitnessedLog], error) {
	page := wire.Page[wire.WitnessedLog]{Items: []wire.WitnessedLog{}}
	if h.witnessed == nil {
		return page, nil
	}
	list, err := h.witnessed(ctx)
	for _, s := range list {
		w := wire.WitnessedLog{Node: s.Node, Key: s.Key, Checkpoint: s.Checkpoint, Entries: s.Entries, At: s.At}
		if c := s.Conflict; c != nil {
			w.Conflict = &wire.ChainConflict{Reason: c.Reason, Checkpoint: c.Checkpoint, Missing: c.Missing, At: c.At}
		}
		page.Items = append(page.Items, w)
	}
	return page, err
}

func (h *chainHandler) listStored(ctx context.Context, _, _ none) (wire.Page[wire.StoredLog], error) {
	page := wire.Page[wire.StoredLog]{Items: []wire.StoredLog{}}
	if h.stored == nil {
		return page, nil
	}
	list, err := h.stored.Logs(ctx)
	for _, l := range list {
		page.Items = append(page.Items, wire.StoredLog{Node: l.Node, Entries: l.Entries, Bytes: l.Bytes, At: l.At})
	}
	return page, err
}

func pathOf(path []tlog.Hash) []string {
	out := make([]string, 0, len(path))
	for _, h := range path {
		out = append(out, base64.StdEncoding.EncodeToString(h[:]))
	}
	return out
}

type trailParams struct {
	ID id.Jail `path:"id"`
	trailFilter
}

// trailFilter selects the decisions to list.
type trailFilter struct {
	Limit    int        `query:"limit" minimum:"1" maximum:"1000" description:"Maximum number of items per page. Default 100."`
	After    int64      `query:"after" minimum:"0" description:"The 'next' value of the previous page."`
	Observed string     `query:"observed" enum:"true,false" description:"true: only actions that the Linux kernel reported. false: only actions that agents reported."`
	Tool     string     `query:"tool" description:"Only decisions about this tool."`
	Tag      string     `query:"tag" enum:"AUTONOMOUS,WHITELISTED,APPROVED,DENIED"`
	From     *time.Time `query:"from" description:"Start of the time range, inclusive."`
	Until    *time.Time `query:"until" description:"End of the time range, exclusive."`
}

// matches reports whether the filter accepts a decision. The chain filters by time.
func (f trailFilter) matches(t wire.TrailEntry) bool {
	return (f.Observed == "" || t.Observed == (f.Observed == "true")) && (f.Tool == "" || t.Action == f.Tool) && (f.Tag == "" || t.Tag == f.Tag)
}

// listDecisions lists the decisions about a jail. They are available as long as the chain is, even
// after the jail was deleted.
func (h *chainHandler) listDecisions(ctx context.Context, p trailParams, _ none) (wire.Page[wire.TrailEntry], error) {
	return h.audit.decisions(ctx, p)
}

func (a *auditLog) decisions(ctx context.Context, p trailParams) (wire.Page[wire.TrailEntry], error) {
	page := wire.Page[wire.TrailEntry]{Items: []wire.TrailEntry{}}
	c, err := a.flushed(ctx)
	if err != nil {
		return page, err
	}
	q := chain.Query{Jail: p.ID, Kinds: []chain.Kind{chain.Decided}, After: p.After, Limit: p.Limit}
	if q.Limit == 0 {
		q.Limit = 100
	}
	if p.From != nil {
		q.From = *p.From
	}
	if p.Until != nil {
		q.Until = *p.Until
	}
	for {
		entries, err := c.Entries(ctx, q)
		if err != nil {
			return page, err
		}
		for _, e := range entries {
			q.After = e.Seq
			t, err := trailOf(e)
			if err != nil {
				return page, fmt.Errorf("convert entry %d of the audit log: %w", e.Seq, err)
			}
			if !p.matches(t) {
				continue
			}
			page.Items = append(page.Items, t)
			if len(page.Items) == q.Limit {
				page.Next = fmt.Sprint(e.Seq)
				return page, nil
			}
		}
		if len(entries) < q.Limit {
			return page, nil
		}
	}
}

func trailOf(e chain.Entry) (wire.TrailEntry, error) {
	var d govern.DecisionRecord
	if err := json.Unmarshal(e.Body, &d); err != nil {
		return wire.TrailEntry{}, fmt.Errorf("read entry %d: %w", e.Seq, err)
	}
	return wire.TrailEntry{
		Seq: e.Seq, At: e.Time.UTC(), Action: d.Action, Resource: d.Resource, Agent: e.Agent,
		Allowed: d.Allowed, Tag: string(d.Tag), Rule: ruleOf(d.Rule), Reason: d.Reason, By: d.By,
		Observed: d.Attributes["observed"] == "true", Line: d.Line(),
	}, nil
}
