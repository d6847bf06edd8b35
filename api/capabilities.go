package api

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"glasshouse/api/wire"
	"glasshouse/capability/budget"
	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/capability/mcp"
	"glasshouse/capability/registry"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/id"
	"glasshouse/policy"
	"glasshouse/policy/access"
	"glasshouse/policy/chain"
)

// Capabilities is the registry as the API uses it. *registry.Registry implements it.
type Capabilities interface {
	Register(ctx context.Context, r registry.Request) ([]registry.Record, error)
	List() []registry.Record
	Find(ref string) (registry.Record, *engine.Installed, error)
	Revoke(ctx context.Context, ref, why string) (registry.Record, error)
	Trust(ctx context.Context, ref, digest string, trust bool) (registry.Record, error)
	Remove(ctx context.Context, ref string) error
	Bundles
	Skills
}

// Caller calls capabilities. *govern.Engine implements it.
type Caller interface {
	Call(ctx context.Context, r govern.Request) (govern.Outcome, error)
	RecentCall(c id.Call) (govern.Outcome, error)
	BudgetOf(who policy.Subject, limits budget.Amounts) (*budget.Budget, error)
	Replay(ctx context.Context, r govern.CallRecord, c *engine.Installed) (same bool, output json.RawMessage, err error)
}

// capabilityHandler serves the routes of capabilities and their calls.
type capabilityHandler struct {
	capabilities Capabilities
	caller       Caller
	importer     Importer
	audit        *auditLog
	closing      context.Context // canceled when the daemon stops
}

var noCapabilities = fault.Cannot("api.capabilities", "this daemon has no capabilities", "start the daemon with glasshouse serve")

// registerCapabilities registers the capabilities of a manifest. Files on the host that it
// names are copied, so the caller must be allowed to read the host.
func (h *capabilityHandler) registerCapabilities(ctx context.Context, _ none, b wire.Register) (wire.Page[wire.Capability], error) {
	page := wire.Page[wire.Capability]{Items: []wire.Capability{}}
	all, err := h.capabilities.Register(ctx, registry.Request{
		File: b.File, Text: []byte(b.Manifest), Dir: b.Dir, By: access.CallerOf(ctx).Name, Again: b.Again,
	})
	if err != nil {
		return page, err
	}
	for _, r := range all {
		page.Items = append(page.Items, h.capabilityOf(h.capabilities, r, false))
	}
	return page, nil
}

func (h *capabilityHandler) listCapabilities(context.Context, none, none) (wire.Page[wire.Capability], error) {
	page := wire.Page[wire.Capability]{Items: []wire.Capability{}}
	for _, r := range h.capabilities.List() {
		page.Items = append(page.Items, h.capabilityOf(h.capabilities, r, false))
	}
	return page, nil
}

func (h *capabilityHandler) capabilityOf(caps Capabilities, r registry.Record, complete bool) wire.Capability {
	w := wire.Capability{
		ID: r.ID, Version: r.Version, Digest: r.Digest, State: string(r.State), Approval: r.Approval, New: r.Widens, Why: r.Why,
		Trust: r.Trust, Bundle: r.Bundle, By: r.By, Created: r.Created.UTC(), Settled: utc(r.Settled), Effects: []string{},
	}
	_, in, err := caps.Find(r.ID + "@" + r.Version)
	if err != nil {
		return w // the record was removed concurrently
	}
	w.Description, w.Runtime, w.Hosts, w.Secrets = in.Description, string(in.Runtime.Type), in.Network.Hosts, in.Secrets
	w.Effects = append(w.Effects, in.Effects...)
	w.Tier, w.PerUse = string(in.EffectiveTier()), in.Approval.PerUse
	if complete {
		w.Manifest = r.Source
		w.Limits = &wire.CallLimits{
			CPUShares: in.Resources.CPUShares, MemoryMB: in.Resources.MemoryMB, TimeoutMS: in.Resources.Timeout.Milliseconds(),
			NetworkBytes: in.Resources.NetworkBytes, MaxPIDs: in.Resources.PIDs,
		}
		if in.Input != nil {
			w.InputSchema, _ = in.Input.JSONSchema() // a type without a JSON Schema is omitted
		}
		if in.Output != nil {
			w.OutputSchema, _ = in.Output.JSONSchema()
		}
	}
	return w
}

// Importer creates capabilities from the tools of MCP servers.
type Importer interface {
	ImportServer(ctx context.Context, file string, text []byte, dir string) (*mcp.Imported, error)
}

func (h *capabilityHandler) importCapabilities(ctx context.Context, _ none, b wire.ImportServer) (wire.ImportedServer, error) {
	if h.importer == nil {
		return wire.ImportedServer{}, fault.Cannot("api.importCapabilities", "this daemon has no capabilities", "start the daemon with glasshouse serve")
	}
	im, err := h.importer.ImportServer(ctx, b.File, []byte(b.Manifest), b.Dir)
	if err != nil {
		return wire.ImportedServer{}, err
	}
	w := wire.ImportedServer{Server: im.Server, Manifests: []string{}}
	for _, cid := range slices.Sorted(maps.Keys(im.Lost)) {
		for _, l := range im.Lost[cid] {
			w.Lost = append(w.Lost, cid+": "+l)
		}
	}
	for _, r := range im.Refused {
		w.Refused = append(w.Refused, r.Tool+": "+r.Why)
	}
	for _, c := range im.Capabilities {
		w.Manifests = append(w.Manifests, c.Text()) // manifests can be concatenated in one file
	}
	return w, nil
}

type oneCapability struct {
	ID      string `path:"capability"`
	Version string `query:"version" description:"Default: the version that calls use."`
}

func (p oneCapability) ref() string { return refOf(p.ID, p.Version) }

func refOf(cid, version string) string {
	if version == "" {
		return cid
	}
	return cid + "@" + version
}

func (h *capabilityHandler) getCapability(_ context.Context, p oneCapability, _ none) (wire.Capability, error) {
	r, _, err := h.capabilities.Find(p.ref())
	if err != nil {
		return wire.Capability{}, err
	}
	return h.capabilityOf(h.capabilities, r, true), nil
}

func (h *capabilityHandler) deleteCapability(ctx context.Context, p oneCapability, _ none) (none, error) {
	r, _, err := h.capabilities.Find(p.ref())
	if err != nil {
		return none{}, err
	}
	if err := h.capabilities.Remove(ctx, refOf(r.ID, r.Version)); err != nil {
		return none{}, err
	}
	h.auditCapability(ctx, r, "removed")
	return none{}, nil
}

func (h *capabilityHandler) revokeCapability(ctx context.Context, p oneCapability, b wire.RevokeCapability) (wire.Capability, error) {
	r, err := h.capabilities.Revoke(ctx, refOf(p.ID, b.Version), b.Reason)
	if err != nil {
		return wire.Capability{}, err
	}
	h.auditCapability(ctx, r, "revoked")
	return h.capabilityOf(h.capabilities, r, false), nil
}

func (h *capabilityHandler) trustCapability(ctx context.Context, p oneCapability, b wire.TrustCapability) (wire.Capability, error) {
	r, err := h.capabilities.Trust(ctx, refOf(p.ID, b.Version), b.Digest, b.Trust)
	if err != nil {
		return wire.Capability{}, err
	}
	what := "trusted to run on the host"
	if !b.Trust {
		what = "no longer trusted to run on the host"
	}
	h.auditCapability(ctx, r, what)
	return h.capabilityOf(h.capabilities, r, false), nil
}

// auditCapability records an action on a capability in the audit log.
func (h *capabilityHandler) auditCapability(ctx context.Context, r registry.Record, what string) {
	h.audit.note(ctx, chain.OperatorActed, map[string]string{
		"what": "capability " + what, "capability": r.ID, "version": r.Version, "digest": r.Digest,
	})
}

type calledCapability struct {
	ID string `path:"capability"`
}

// callCapability calls a capability. A failed call is a successful response; an error means
// that the capability was not called.
func (h *capabilityHandler) callCapability(ctx context.Context, p calledCapability, b wire.Call) (wire.Called, error) {
	if h.caller == nil {
		return wire.Called{}, fault.Cannot("api.callCapability", "this daemon cannot call capabilities", "start the daemon with glasshouse serve")
	}
	r := govern.Request{
		Capability: p.ID, Input: b.Input, Operator: b.Jail == "", Timeout: time.Duration(b.TimeoutMS) * time.Millisecond,
		Who: policy.Subject{Jail: b.Jail, Session: b.Session, Run: b.Run},
		Key: keyOf(ctx), ApprovalContext: h.closing,
	}
	if b.Jail == "" {
		r.Who.Agent = access.CallerOf(ctx).Name
	}
	for _, text := range b.Labels {
		l, err := manifest.ParseLabel(text)
		if err != nil {
			return wire.Called{}, fault.Fieldf("api.callCapability", "labels", "%w", err)
		}
		r.Labels = append(r.Labels, l)
	}
	if b.Run != "" || len(b.Budget) > 0 {
		limits := budget.Amounts{}
		for name, n := range b.Budget {
			limits[budget.Dimension(name)] = n
		}
		var err error
		r.Budget, err = h.caller.BudgetOf(r.Who, limits)
		if err != nil {
			return wire.Called{}, err
		}
	}
	out, err := h.caller.Call(ctx, r)
	if err != nil && out.State == govern.CallRefused {
		return wire.Called{}, err
	}
	return convert[wire.Called](out)
}

type oneCall struct {
	ID id.Call `path:"call"`
}

func (h *capabilityHandler) getCall(_ context.Context, p oneCall, _ none) (wire.Called, error) {
	if h.caller == nil {
		return wire.Called{}, fault.Newf(fault.NotFound, "api.getCall", string(p.ID), "this daemon cannot call capabilities")
	}
	out, err := h.caller.RecentCall(p.ID)
	if err != nil {
		return wire.Called{}, err
	}
	return convert[wire.Called](out)
}

// replayCall repeats a recorded call and compares the results.
func (h *capabilityHandler) replayCall(ctx context.Context, p oneEntry, _ none) (wire.Replayed, error) {
	c, err := h.audit.flushed(ctx)
	if err != nil {
		return wire.Replayed{}, err
	}
	seq, err := p.number()
	if err != nil {
		return wire.Replayed{}, err
	}
	e, err := c.Entry(ctx, seq)
	if err != nil {
		return wire.Replayed{}, err
	}
	var rec govern.CallRecord
	if e.Kind != chain.CallEnded {
		return wire.Replayed{}, fault.Newf(fault.Invalid, "api.replayCall", p.Seq, "the entry is not the end of a call; its kind is %s", e.Kind)
	}
	if err := json.Unmarshal(e.Body, &rec); err != nil {
		return wire.Replayed{}, fmt.Errorf("read entry %d: %w", seq, err)
	}
	_, in, err := h.capabilities.Find(refOf(e.Capability, rec.Version))
	if err != nil {
		return wire.Replayed{}, err
	}
	same, output, err := h.caller.Replay(ctx, rec, in)
	return wire.Replayed{Same: same, Output: output}, err
}
