package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"glasshouse/agents/autonomy"
	"glasshouse/capability/manifest"
	"glasshouse/capability/registry"
	"glasshouse/id"
	"glasshouse/observe/eventlog"
	"glasshouse/policy/chain"
)

// auditNotes records actions of the daemon's components in the audit log.
type auditNotes struct {
	chain *chain.Chain
	log   *slog.Logger
}

// notes returns the recorder of the daemon's audit log.
func (d *Daemon) notes() auditNotes { return auditNotes{d.chain, d.log} }

// noteCapability records the new state of a version in the audit log before it takes effect.
func (a auditNotes) noteCapability(ctx context.Context, r registry.Record, c *manifest.Capability) error {
	body, err := json.Marshal(struct {
		What     string   `json:"what"`
		Version  string   `json:"version"`
		Digest   string   `json:"digest"`
		Runtime  string   `json:"runtime"`
		New      []string `json:"new,omitempty"`
		Approval string   `json:"approval,omitempty"`
		Bundle   string   `json:"bundle,omitempty"`
		Why      string   `json:"why,omitempty"`
		Trust    bool     `json:"trust,omitempty"`
	}{"capability " + string(r.State), r.Version, r.Digest, string(c.Runtime.Type), r.Widens, string(r.Approval), r.Bundle, r.Why, r.Trust})
	if err != nil {
		return fmt.Errorf("encode the audit entry of capability %s: %w", r.ID, err)
	}
	_, err = a.chain.Append(ctx, chain.Entry{Kind: chain.OperatorActed, Capability: r.ID, Agent: r.By, Body: body})
	if err != nil {
		return fmt.Errorf("record the state of capability %s: %w", r.ID, err)
	}
	return nil
}

// noteBundle records the installation of a bundle in the audit log before it takes effect.
func (a auditNotes) noteBundle(ctx context.Context, b registry.Bundle, by string) error {
	body, err := json.Marshal(map[string]any{
		"bundle": b.Name, "version": b.Now.Version, "digest": b.Now.Digest, "publisher": b.Now.Publisher, "tier": b.Now.Tier,
	})
	if err != nil {
		return fmt.Errorf("encode the audit entry of bundle %s: %w", b.Name, err)
	}
	_, err = a.chain.Append(ctx, chain.Entry{Kind: chain.BundleInstalled, Agent: by, Body: body})
	if err != nil {
		return fmt.Errorf("record the installation of bundle %s: %w", b.Name, err)
	}
	return nil
}

// recordLimits records the result of a resource request in the audit log.
func (a auditNotes) recordLimits(ctx context.Context, c autonomy.Change) (int64, error) {
	why := c.Why
	if c.Refusal != nil {
		why = strings.TrimSpace(c.Refusal.Code + ": " + c.Refusal.Reason)
	}
	body, err := json.Marshal(struct {
		Verdict autonomy.Verdict `json:"verdict"`
		Why     string           `json:"why,omitempty"`
		By      string           `json:"by,omitempty"`
		Want    string           `json:"want,omitempty"`
		From    string           `json:"from"`
		To      string           `json:"to"`
	}{c.Verdict, why, c.By, c.Want.String(), c.From.String(), c.To.String()})
	if err != nil {
		return 0, fmt.Errorf("encode the audit entry of a resource request: %w", err)
	}
	e, err := a.chain.Append(ctx, chain.Entry{Kind: chain.JailLimited, Jail: c.Jail, Body: body})
	return e.Seq, err
}

// recordRequest records a request between siblings in the audit log.
func (a auditNotes) recordRequest(ctx context.Context, r autonomy.Request) error {
	body, err := json.Marshal(struct {
		ID     id.Request     `json:"request"`
		To     string         `json:"to"`
		Action string         `json:"action"`
		State  autonomy.State `json:"state"`
		Why    string         `json:"why,omitempty"`
	}{r.ID, cmp.Or(r.To.Name, r.To.Session, string(r.To.Jail)), r.Action, r.State, r.Why})
	if err != nil {
		return fmt.Errorf("encode the audit entry of request %s: %w", r.ID, err)
	}
	_, err = a.chain.Append(ctx, chain.Entry{Kind: chain.SiblingTold, Jail: r.From.Jail, Session: r.From.Session, Run: string(r.From.Run), Agent: r.From.Agent, Body: body})
	if err != nil {
		return fmt.Errorf("record request %s: %w", r.ID, err)
	}
	return nil
}

// seal adds the digest of a segment of a jail's events to the audit log. A segment that was
// found at startup may be sealed already.
func (a auditNotes) seal(jid id.Jail, s eventlog.Segment, found bool) {
	ctx := context.Background()
	if found {
		sealed, err := a.chain.Sealed(ctx, jid)
		if err != nil {
			a.log.Error("cannot check whether an event segment is sealed", "jail", jid, "file", s.File, "err", err)
			return
		}
		if slices.ContainsFunc(sealed, func(c chain.Segment) bool { return c.File == s.File && c.SHA256 == s.SHA256 }) {
			return
		}
	}
	stream, _, _ := strings.Cut(s.File, "-")
	if _, err := a.chain.Seal(ctx, jid, chain.Segment{Stream: stream, File: s.File, First: s.First, Last: s.Last, SHA256: s.SHA256}); err != nil {
		a.log.Error("cannot seal an event segment; it will be retried at the next start", "jail", jid, "file", s.File, "err", err)
	}
}
