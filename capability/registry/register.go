package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/policy"
	"glasshouse/policy/approval"
)

// A Request is a request to register capabilities.
type Request struct {
	File   string // name of the manifest, for messages
	Text   []byte // the manifest, with one or more capabilities
	Dir    string // base of the manifest's relative paths; empty: the manifest may name no files
	By     string
	Bundle string // name@version of the bundle, if the capability belongs to one
	Again  bool   // request approval again for a refused or revoked version

	allowed bool // approved together with its bundle

	// taken lists the files that were copied for this request, by the paths in the manifests:
	// capabilities with the same paths have the same files.
	taken map[string][]byte
}

// ActionInstall is the action of approval requests for the effects of a capability. The
// resource is id@version.
const ActionInstall = "install"

// Register registers the capabilities of a manifest. A capability without effects, or with no
// more effects than an approved version of it, is approved immediately. The others are pending
// until a person has approved them. Registering the same version again is not an error and
// does not request approval again.
func (r *Registry) Register(ctx context.Context, req Request) ([]Record, error) {
	all, err := manifest.Read(req.File, req.Text)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fault.Newf(fault.Invalid, "registry.Register", req.File, "the manifest has no (capability …) form")
	}
	var out []Record
	err = r.change(ctx, func() error {
		req.taken = map[string][]byte{}
		out = nil
		for _, c := range all {
			rec, err := r.register(ctx, req, c)
			if err != nil {
				return fmt.Errorf("register %s: %w", c.ID, err)
			}
			out = append(out, rec)
		}
		return nil
	})
	return out, err
}

func (r *Registry) register(ctx context.Context, req Request, c *manifest.Capability) (Record, error) {
	rec, in, err := r.admit(ctx, req, c)
	if err != nil || in == nil {
		return rec, err
	}
	if rec.State == Approved {
		return rec, r.settle(ctx, rec, in)
	}
	asked, err := r.cfg.Approvals.Open(ctx, r.question(rec, c))
	if err != nil {
		return rec, fmt.Errorf("request approval: %w", err)
	}
	rec.Approval = asked.ID
	if err := r.settle(ctx, rec, in); err != nil {
		return rec, err
	}
	r.await(rec, c)
	return rec, nil
}

// admit copies a capability and its files and prepares it. It returns the new record, which is
// pending if it needs approval. If the version is registered already, it returns the existing
// record and nil.
func (r *Registry) admit(ctx context.Context, req Request, c *manifest.Capability) (Record, *engine.Installed, error) {
	digest, files, err := r.take(ctx, req, c)
	if err != nil {
		return Record{}, nil, err
	}
	var was *manifest.Capability
	trust := false
	if old, _, err := r.findStored(c.ID + "@" + c.Version); err == nil {
		trust = old.Trust && old.Digest == digest
		switch {
		case old.Digest != digest && old.State != Refused:
			return old, nil, &fault.Error{Op: "registry.Register", On: c.ID, Kind: fault.Conflict,
				Err: fmt.Errorf("version %s is registered with other contents", c.Version), Remedy: "increase the version of the changed capability"}
		case old.Digest == digest && (old.State == Approved || old.State == Pending && old.Node == r.node() && !req.allowed):
			return old, nil, nil
		case old.Digest == digest && old.State != Pending && !req.Again:
			return old, nil, &fault.Error{Op: "registry.Register", On: c.ID, Kind: fault.Denied,
				Err: fmt.Errorf("version %s was %s: %s", c.Version, old.State, old.Why), Remedy: "register it again with the option to request approval again"}
		}
	}
	if last, installed, err := r.findStored(c.ID); err == nil && last.State == Approved {
		if compare(c.Version, last.Version) < 0 {
			return last, nil, &fault.Error{Op: "registry.Register", On: c.ID, Kind: fault.Conflict,
				Err: fmt.Errorf("%s is older than the installed %s", c.Version, last.Version), Remedy: "remove the newer version first"}
		}
		was = installed.Capability
	}
	rec := Record{
		ID: c.ID, Version: c.Version, Digest: digest, Files: files, Source: c.Source, State: Pending, Trust: trust,
		Widens: manifest.Widens(was, c), Bundle: req.Bundle, By: req.By, Node: r.node(), Created: time.Now().UTC(),
	}
	in := &engine.Installed{Capability: c, Dir: r.dirOf(files), Digest: digest, Trust: trust}
	if r.cfg.Prepare != nil {
		if err := r.cfg.Prepare(ctx, in); err != nil {
			return rec, nil, err
		}
	}
	elevated := was == nil && c.EffectiveTier() == manifest.Elevated
	if req.allowed || len(rec.Widens) == 0 && !elevated {
		rec.State, rec.Settled = Approved, &rec.Created
	}
	return rec, in, nil
}

// settle stores a new record and makes it the current one.
func (r *Registry) settle(ctx context.Context, rec Record, in *engine.Installed) error {
	if r.cfg.Changed != nil {
		if err := r.cfg.Changed(ctx, rec, in.Capability); err != nil {
			return err
		}
	}
	if err := r.write(ctx, Change{Put: []Record{rec}}); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.insert(&version{Record: rec, installed: in, missing: r.lacks(in.Dir)})
	return nil
}

// question returns the approval request for a version.
func (r *Registry) question(rec Record, c *manifest.Capability) approval.Request {
	attributes := map[string]string{"digest": rec.Digest, "runtime": string(c.Runtime.Type)}
	for name, list := range map[string][]string{
		"effects": c.Effects, "hosts": c.Network.Hosts, "secrets": c.Secrets,
		"data in": words(c.DataClasses.Input), "data out": words(c.DataClasses.Output),
	} {
		attribute(attributes, name, list)
	}
	number(attributes, rec.Widens)
	if rec.Bundle != "" {
		attributes["bundle"] = rec.Bundle
	}
	help, _ := json.Marshal(map[string]any{"manifest": rec.Source, "new": rec.Widens})
	tier := approval.Standard
	if c.EffectiveTier() == manifest.Elevated {
		tier = approval.Elevated
	}
	return approval.Request{
		Question: policy.Question{Action: ActionInstall, Resource: rec.ID + "@" + rec.Version, Attributes: attributes},
		Rule:     policy.Rule{Action: ActionInstall, Pattern: "*", Effect: policy.Ask, File: "registry"},
		Reason:   "the effects of a capability must be approved before it is called",
		Tier:     tier, Context: help, Scopes: []approval.Scope{approval.Once},
		Expires: time.Now().Add(approvalTime),
	}
}

// attribute adds a list to the attributes of an approval request, unless it is empty.
func attribute(to map[string]string, name string, list []string) {
	if len(list) > 0 {
		to[name] = strings.Join(list, ", ")
	}
}

// number adds the new effects in order.
func number(to map[string]string, widens []string) {
	for i, w := range widens {
		to[fmt.Sprintf("new %02d", i+1)] = w
	}
}

func words(labels []manifest.Label) (all []string) {
	for _, l := range labels {
		all = append(all, string(l))
	}
	return all
}

// approvalTime is the lifetime of an approval request for a registration.
const approvalTime = 30 * 24 * time.Hour

// await waits for the approval of a pending version and applies its outcome.
func (r *Registry) await(rec Record, c *manifest.Capability) {
	r.wg.Go(func() {
		a, err := r.answer(r.ctx, r.question(rec, c))
		if err != nil {
			if r.ctx.Err() == nil {
				r.cfg.Log.Error("cannot request approval for a capability", "capability", rec.ID, "version", rec.Version, "err", err)
			}
			return
		}
		err = r.change(r.ctx, func() error { return r.apply(rec, a) })
		if err != nil {
			r.cfg.Log.Error("cannot apply the approval of a capability; the next start retries", "capability", rec.ID, "version", rec.Version, "err", err)
		}
	})
}

// apply stores the outcome of an approval, unless the version was removed in the meantime, or
// registered by another daemon.
func (r *Registry) apply(rec Record, a approval.Request) error {
	now, in, err := r.findStored(rec.ref())
	if err != nil || !r.waits(now) || now.Digest != rec.Digest {
		return nil
	}
	at := time.Now().UTC()
	now.Approval, now.Settled = a.ID, &at
	granted, ok := a.Granted()
	if ok && granted.Resource == rec.ref() {
		now.State = Approved
	} else {
		now.State, now.Why = Refused, a.Outcome
	}
	if err := r.settle(r.ctx, now, in); err != nil {
		return err
	}
	r.taken(a)
	return nil
}

// waits reports whether this daemon waits for the approval of a version.
func (r *Registry) waits(rec Record) bool { return rec.State == Pending && rec.Node == r.node() }

// answer opens an approval request and waits for its outcome. The outcome remains in the
// queue, also for the next daemon, until it was applied and taken is called.
func (r *Registry) answer(ctx context.Context, q approval.Request) (approval.Request, error) {
	asked, err := r.cfg.Approvals.Open(ctx, q)
	if err != nil {
		return approval.Request{}, fmt.Errorf("request approval: %w", err)
	}
	a, err := r.cfg.Approvals.Wait(ctx, asked.ID)
	if err == nil && a.State == approval.Pending {
		err = context.Cause(ctx)
	}
	return a, err
}

// taken removes an applied outcome from the approval queue.
func (r *Registry) taken(a approval.Request) {
	if _, err := r.cfg.Approvals.Take(r.ctx, a.ID, a.Question); err != nil && r.ctx.Err() == nil {
		r.cfg.Log.Warn("cannot remove an applied approval from the queue; it could be applied again", "approval", a.ID, "err", err)
	}
}

// Revoke revokes a version: it can no longer be called.
func (r *Registry) Revoke(ctx context.Context, ref, why string) (rec Record, err error) {
	err = r.change(ctx, func() error {
		var in *engine.Installed
		rec, in, err = r.findStored(ref)
		if err != nil || rec.State == Revoked {
			return err
		}
		was, at := rec, time.Now().UTC()
		rec.State, rec.Why, rec.Settled, rec.Trust = Revoked, why, &at, false
		if err := r.settle(ctx, rec, in); err != nil {
			return err
		}
		r.withdraw(ctx, was, "it was revoked")
		return r.drop(ctx, in, false)
	})
	return rec, err
}

// Trust sets whether an operator trusts a version, identified by its digest, to run directly
// on the host.
func (r *Registry) Trust(ctx context.Context, ref, digest string, trust bool) (rec Record, err error) {
	err = r.change(ctx, func() error {
		var in *engine.Installed
		rec, in, err = r.findStored(ref)
		if err != nil {
			return err
		}
		if digest != rec.Digest {
			return &fault.Error{Op: "registry.Trust", On: ref, Kind: fault.Conflict,
				Err: errors.New("the digest does not match"), Remedy: "review the changes; the digest is " + rec.Digest}
		}
		rec.Trust = trust
		trusted := *in
		trusted.Trust = trust
		return r.settle(ctx, rec, &trusted)
	})
	return rec, err
}

// Remove deletes a version and its files.
func (r *Registry) Remove(ctx context.Context, ref string) error {
	return r.change(ctx, func() error {
		rec, _, err := r.findStored(ref)
		if err != nil {
			return err
		}
		if err := r.write(ctx, Change{Gone: []Record{rec}}); err != nil {
			return err
		}
		r.mu.Lock()
		r.displace(rec)
		r.mu.Unlock()
		r.withdraw(ctx, rec, "it was removed")
		return r.dropAll(ctx, []Record{rec})
	})
}

// displace removes a record from the index. The caller holds r.mu.
//
// +checklocks:r.mu
func (r *Registry) displace(rec Record) {
	left := slices.DeleteFunc(slices.Clone(r.known[rec.ID]), func(v *version) bool { return v.Version == rec.Version })
	if r.known[rec.ID] = left; len(left) == 0 {
		delete(r.known, rec.ID)
	}
}

// dropAll deletes the files and resources of removed versions.
func (r *Registry) dropAll(ctx context.Context, gone []Record) error {
	var errs []error
	for _, rec := range gone {
		in, err := r.read(rec)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		r.mu.RLock()
		last := len(r.known[rec.ID]) == 0
		r.mu.RUnlock()
		errs = append(errs, r.drop(ctx, in, last))
	}
	return errors.Join(append(errs, r.tidy())...)
}

// withdraw withdraws the approval request of a version if this daemon has requested it. The other
// daemons withdraw theirs when they read the change.
func (r *Registry) withdraw(ctx context.Context, rec Record, why string) {
	if !r.waits(rec) {
		return
	}
	if _, err := r.cfg.Approvals.Withdraw(ctx, rec.Approval, why); err != nil {
		r.cfg.Log.Warn("cannot withdraw the approval request of a capability", "capability", rec.ID, "approval", rec.Approval, "err", err)
	}
}

func (r *Registry) drop(ctx context.Context, in *engine.Installed, purge bool) error {
	if r.cfg.Dropped == nil {
		return nil
	}
	return r.cfg.Dropped(ctx, in, purge)
}
