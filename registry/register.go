package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"glasshouse/approval"
	"glasshouse/engine"
	"glasshouse/fault"
	"glasshouse/manifest"
	"glasshouse/policy"
)

// A Request is what somebody wants registered.
type Request struct {
	File   string // the manifest's name, for what is said of it
	Text   []byte // the manifest: one capability or more
	Dir    string // that the manifest's paths are relative to; empty: it may name none
	By     string
	Bundle string // name@version, if it comes with one
	Again  bool   // ask again about a version that was refused or revoked

	allowed bool // with the bundle that it comes with

	// taken lists the files that were copied for this request, by the paths that
	// manifests name: capabilities with the same paths have the same files.
	taken map[string][]byte
}

// ActionInstall is the action that people are asked about before what a capability
// may do counts. The resource is id@version.
const ActionInstall = "install"

// Register takes up the capabilities of a manifest. Those that may do no more than
// an approved version of theirs, or nothing at all, are approved at once; about the
// others a person is asked, and until then they are pending. To register the same
// again is no error, and asks nobody again.
func (r *Registry) Register(ctx context.Context, req Request) ([]Record, error) {
	all, err := manifest.Read(req.File, req.Text)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fault.Newf(fault.Invalid, "registry.Register", req.File, "it has no (capability …) form")
	}
	r.turn.Lock()
	defer r.turn.Unlock()
	req.taken = map[string][]byte{}
	var out []Record
	for _, c := range all {
		rec, err := r.register(ctx, req, c)
		if err != nil {
			return out, fmt.Errorf("register %s: %w", c.ID, err)
		}
		out = append(out, rec)
	}
	return out, nil
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
		return rec, fmt.Errorf("ask whether it may: %w", err)
	}
	rec.Approval = asked.ID
	if err := r.settle(ctx, rec, in); err != nil {
		return rec, err
	}
	r.await(rec, c)
	return rec, nil
}

// admit takes a copy of a capability and its files, and prepares it. It returns its
// record as it should be from now on, pending if a person is to be asked, or as it is
// and nothing to settle, if it is registered already.
func (r *Registry) admit(ctx context.Context, req Request, c *manifest.Capability) (Record, *engine.Installed, error) {
	digest, files, err := r.take(ctx, req, c)
	if err != nil {
		return Record{}, nil, err
	}
	var was *manifest.Capability
	trust := false
	if old, _, err := r.kept(c.ID + "@" + c.Version); err == nil {
		trust = old.Trust && old.Digest == digest
		switch {
		case old.Digest != digest && old.State != Refused:
			return old, nil, &fault.Error{Op: "registry.Register", On: c.ID, Kind: fault.Conflict,
				Err: fmt.Errorf("version %s is registered with other contents", c.Version), Remedy: "give what has changed another version"}
		case old.Digest == digest && (old.State == Approved || old.State == Pending && !req.allowed):
			return old, nil, nil
		case old.Digest == digest && old.State != Pending && !req.Again:
			return old, nil, &fault.Error{Op: "registry.Register", On: c.ID, Kind: fault.Denied,
				Err: fmt.Errorf("version %s was %s: %s", c.Version, old.State, old.Why), Remedy: "say that it is to be asked about again"}
		}
	}
	if last, installed, err := r.kept(c.ID); err == nil && last.State == Approved {
		if compare(c.Version, last.Version) < 0 {
			return last, nil, &fault.Error{Op: "registry.Register", On: c.ID, Kind: fault.Conflict,
				Err: fmt.Errorf("%s is older than the installed %s", c.Version, last.Version), Remedy: "remove the newer version first"}
		}
		was = installed.Capability
	}
	rec := Record{
		ID: c.ID, Version: c.Version, Digest: digest, Files: files, Source: c.Source, State: Pending, Trust: trust,
		Widens: manifest.Widens(was, c), Bundle: req.Bundle, By: req.By, Created: time.Now().UTC(),
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

// settle keeps a record as it is from now on.
func (r *Registry) settle(ctx context.Context, rec Record, in *engine.Installed) error {
	if r.cfg.Changed != nil {
		if err := r.cfg.Changed(ctx, rec, in.Capability); err != nil {
			return err
		}
	}
	if err := r.cfg.Store.PutCapability(ctx, rec); err != nil {
		return err
	}
	r.put(rec, in)
	return nil
}

// question is what a person is asked about a version.
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
		Reason:   "what a capability may do has to be allowed before it is called",
		Tier:     tier, Context: help, Scopes: []approval.Scope{approval.Once},
		Expires: time.Now().Add(approvalTime),
	}
}

// attribute adds a list to what a person is shown, unless it is empty.
func attribute(to map[string]string, name string, list []string) {
	if len(list) > 0 {
		to[name] = strings.Join(list, ", ")
	}
}

// number adds what would be new, in its order.
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

// approvalTime is how long a registration waits for a person.
const approvalTime = 30 * 24 * time.Hour

// await waits for the answer about a pending version, and has it count.
func (r *Registry) await(rec Record, c *manifest.Capability) {
	r.wg.Go(func() {
		a, err := r.answer(r.ctx, r.question(rec, c))
		if err != nil {
			if r.ctx.Err() == nil {
				r.cfg.Log.Error("nobody can be asked about a capability", "capability", rec.ID, "version", rec.Version, "err", err)
			}
			return
		}
		r.turn.Lock()
		defer r.turn.Unlock()
		now, in, err := r.kept(rec.ID + "@" + rec.Version)
		if err != nil || now.State != Pending || now.Digest != rec.Digest {
			return // it was removed meanwhile
		}
		at := time.Now().UTC()
		now.Approval, now.Settled = a.ID, &at
		granted, ok := a.Granted()
		if ok && granted.Resource == rec.ID+"@"+rec.Version {
			now.State = Approved
		} else {
			now.State, now.Why = Refused, a.Outcome
		}
		if err := r.settle(r.ctx, now, in); err != nil {
			r.cfg.Log.Error("an answer about a capability does not count yet; it will at the next start", "capability", rec.ID, "version", rec.Version, "err", err)
			return
		}
		r.taken(a)
	})
}

// answer puts a question and waits for the answer. It is there to be had, by a daemon
// that comes after this one too, until it is taken: when it counts.
func (r *Registry) answer(ctx context.Context, q approval.Request) (approval.Request, error) {
	asked, err := r.cfg.Approvals.Open(ctx, q)
	if err != nil {
		return approval.Request{}, fmt.Errorf("ask whether it may: %w", err)
	}
	a, err := r.cfg.Approvals.Wait(ctx, asked.ID)
	if err == nil && a.State == approval.Pending {
		err = context.Cause(ctx)
	}
	return a, err
}

// taken has an answer that counts be nobody's any more.
func (r *Registry) taken(a approval.Request) {
	if _, err := r.cfg.Approvals.Take(r.ctx, a.ID, a.Question); err != nil && r.ctx.Err() == nil {
		r.cfg.Log.Warn("an answer that counts could be taken again", "approval", a.ID, "err", err)
	}
}

// Revoke has a version no longer be called.
func (r *Registry) Revoke(ctx context.Context, ref, why string) (Record, error) {
	r.turn.Lock()
	defer r.turn.Unlock()
	rec, in, err := r.kept(ref)
	if err != nil {
		return rec, err
	}
	if rec.State == Revoked {
		return rec, nil
	}
	if rec.State == Pending {
		r.withdraw(ctx, rec, "it was revoked")
	}
	at := time.Now().UTC()
	rec.State, rec.Why, rec.Settled, rec.Trust = Revoked, why, &at, false
	if err := r.settle(ctx, rec, in); err != nil {
		return rec, err
	}
	return rec, r.drop(ctx, in, false)
}

// Trust says whether an operator trusts a version, by its digest, to run on the
// host itself.
func (r *Registry) Trust(ctx context.Context, ref, digest string, trust bool) (Record, error) {
	r.turn.Lock()
	defer r.turn.Unlock()
	rec, in, err := r.kept(ref)
	if err != nil {
		return rec, err
	}
	if digest != rec.Digest {
		return rec, &fault.Error{Op: "registry.Trust", On: ref, Kind: fault.Conflict,
			Err: errors.New("its digest is another one"), Remedy: "look at what has changed; it is " + rec.Digest}
	}
	rec.Trust = trust
	trusted := *in
	trusted.Trust = trust
	return rec, r.settle(ctx, rec, &trusted)
}

// Remove forgets a version, and everything that was kept for it.
func (r *Registry) Remove(ctx context.Context, ref string) error {
	r.turn.Lock()
	defer r.turn.Unlock()
	return r.remove(ctx, ref)
}

func (r *Registry) remove(ctx context.Context, ref string) error {
	rec, _, err := r.kept(ref)
	if err != nil {
		return err
	}
	if rec.State == Pending {
		r.withdraw(ctx, rec, "it was removed")
	}
	if err := r.cfg.Store.DeleteCapability(ctx, rec.ID, rec.Version); err != nil {
		return err
	}
	r.mu.Lock()
	r.displace(rec)
	r.mu.Unlock()
	return r.dropAll(ctx, []Record{rec})
}

// displace has a record count no longer. r.mu is held.
//
// +checklocks:r.mu
func (r *Registry) displace(rec Record) {
	left := slices.DeleteFunc(slices.Clone(r.known[rec.ID]), func(v *version) bool { return v.Version == rec.Version })
	if r.known[rec.ID] = left; len(left) == 0 {
		delete(r.known, rec.ID)
	}
}

// dropAll removes what was kept for versions that are gone.
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

func (r *Registry) withdraw(ctx context.Context, rec Record, why string) {
	if _, err := r.cfg.Approvals.Withdraw(ctx, rec.Approval, why); err != nil {
		r.cfg.Log.Warn("a question about a capability is still asked", "capability", rec.ID, "approval", rec.Approval, "err", err)
	}
}

func (r *Registry) drop(ctx context.Context, in *engine.Installed, purge bool) error {
	if r.cfg.Dropped == nil {
		return nil
	}
	return r.cfg.Dropped(ctx, in, purge)
}
