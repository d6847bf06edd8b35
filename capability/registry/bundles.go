package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"glasshouse/capability/bundle"
	"glasshouse/capability/engine"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy"
	"glasshouse/policy/approval"
)

// A Bundle is a stored bundle record: an installed bundle, a pending installation, or both.
// Next holds a pending update.
type Bundle struct {
	Name string            `json:"name"`
	Now  *bundle.Installed `json:"now,omitempty"`
	Next *Install          `json:"next,omitempty"`

	Capabilities []string `json:"capabilities,omitempty"` // id@version of the installed capabilities
	Skill        string   `json:"skill,omitempty"`
}

// An Install is a pending installation, or the outcome of the last one.
type Install struct {
	Version  string      `json:"version"`
	Digest   string      `json:"digest"`
	Path     string      `json:"path"`
	State    State       `json:"state"` // Pending, or Refused
	Approval id.Approval `json:"approval,omitempty"`
	Why      string      `json:"why,omitempty"`
	By       string      `json:"by,omitempty"`
	Node     string      `json:"node,omitempty"` // the daemon of a fleet that installs it
	Created  time.Time   `json:"created"`
}

// pendingAt reports whether a daemon is installing a bundle.
func (n *Install) pendingAt(node string) bool {
	return n != nil && n.State == Pending && n.Node == node
}

func bundleName(ref string) string {
	name, _, _ := strings.Cut(ref, "@")
	return name
}

// Install starts to install the bundle at path, which is an archive or a directory. When it
// returns, the registry has its own copy. Install returns validation errors; approval is
// asynchronous and Bundles reports its outcome. A bundle that is already installed is returned
// unchanged.
func (r *Registry) Install(ctx context.Context, path, by string) (Bundle, error) {
	b, err := r.installer.Verify(path)
	if err != nil {
		return Bundle{}, err
	}
	if err := b.CheckClaims(); err != nil {
		return Bundle{}, err
	}
	name := b.Metadata.Name
	next := &Install{Version: b.Metadata.Version, Digest: b.Digest(), Path: path, State: Pending, By: by, Node: r.node(), Created: time.Now().UTC()}
	var rec Bundle
	begun := false
	err = r.change(ctx, func() error {
		rec, _ = r.bundle(name)
		begun = rec.Next.pendingAt(r.node()) && rec.Next.Digest == next.Digest
		if begun {
			return nil
		}
		rec.Name, rec.Next = name, next
		return r.keepBundle(ctx, rec)
	})
	if err != nil || begun {
		return rec, err
	}
	r.install(rec)
	return r.settled(ctx, name)
}

// settled waits until an approval is requested, or until the installation ends without one.
func (r *Registry) settled(ctx context.Context, name string) (Bundle, error) {
	for {
		r.mu.RLock()
		rec, changed := r.bundles[name], r.changed
		r.mu.RUnlock()
		switch next := rec.Next; {
		case next == nil, next.Approval != "":
			return rec, nil
		case next.State == Refused:
			return rec, fault.Newf(fault.Denied, "registry.Install", name, "%s", next.Why)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return rec, context.Cause(ctx)
		}
	}
}

// install continues an installation until it ends or the registry is closed.
func (r *Registry) install(rec Bundle) {
	path := rec.Next.Path
	if _, err := os.Stat(path); err != nil {
		path = filepath.Join(r.cfg.Bundles, rec.Next.Digest) // copied before the approval was requested
	}
	r.wg.Go(func() {
		_, err := r.installer.Install(r.ctx, path)
		if r.ctx.Err() != nil {
			return // the next start of the daemon resumes it
		}
		failed := r.change(r.ctx, func() error { return r.ended(rec, err) })
		if failed != nil {
			r.cfg.Log.Error("cannot record the outcome of a bundle installation; the next start resumes it", "bundle", rec.Name, "err", failed)
			r.changeMu.Lock()
			defer r.changeMu.Unlock()
			r.mu.Lock()
			defer r.mu.Unlock()
			r.setBundle(outcome(r.bundles[rec.Name], err))
			r.notifyBundles()
			return
		}
		r.mu.Lock()
		a, ok := r.answers[rec.Next.Digest]
		delete(r.answers, rec.Next.Digest)
		r.mu.Unlock()
		if ok {
			r.taken(a)
		}
	})
}

// ended records the outcome of an installation.
func (r *Registry) ended(rec Bundle, err error) error {
	now, _ := r.bundle(rec.Name)
	if !now.Next.is(rec.Next) {
		return nil
	}
	return r.keepBundle(r.ctx, outcome(now, err))
}

// is reports whether two records are of one installation.
func (n *Install) is(other *Install) bool {
	return n != nil && other != nil && n.Digest == other.Digest && n.Node == other.Node
}

// outcome returns the record of a bundle after an installation.
func outcome(b Bundle, err error) Bundle {
	if b.Next == nil {
		return b
	}
	if err == nil { // already installed
		b.Next = nil
		return b
	}
	next := *b.Next
	next.State, next.Why = Refused, err.Error()
	b.Next = &next
	return b
}

func (r *Registry) bundle(name string) (Bundle, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	b, ok := r.bundles[name]
	return b, ok
}

func (r *Registry) keepBundle(ctx context.Context, b Bundle) error {
	return r.changeBundle(ctx, Change{Bundle: &b})
}

// changeBundle applies a change of a bundle atomically. Removed records take effect immediately; the
// caller deletes the files and other resources that were kept for them.
func (r *Registry) changeBundle(ctx context.Context, c Change) error {
	if r.cfg.Changed != nil {
		for _, rec := range c.Put {
			if err := r.cfg.Changed(ctx, rec, c.installed[rec.ref()].Capability); err != nil {
				return err
			}
		}
	}
	if was, _ := r.bundle(c.Bundle.Name); r.cfg.Installed != nil && !c.Forget && c.Bundle.Now != nil && (was.Now == nil || was.Now.Digest != c.Bundle.Now.Digest) {
		if err := r.cfg.Installed(ctx, *c.Bundle, was.by()); err != nil {
			return err
		}
	}
	if err := r.write(ctx, c); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rec := range c.Put {
		r.insert(&version{Record: rec, installed: c.installed[rec.ref()]})
	}
	for _, rec := range c.Gone {
		r.displace(rec)
	}
	if c.Skill != nil {
		r.skills[c.Skill.Name] = *c.Skill
	}
	delete(r.skills, c.GoneSkill)
	if c.Forget {
		delete(r.bundles, c.Bundle.Name)
		delete(r.warrants, c.Bundle.Name)
	} else {
		r.setBundle(*c.Bundle)
	}
	r.notifyBundles()
	return nil
}

// notifyBundles wakes the goroutines that wait for a bundle to change. The caller holds r.mu.
//
// +checklocks:r.mu
func (r *Registry) notifyBundles() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// setBundle makes a bundle's record the current one. The caller holds r.mu.
//
// +checklocks:r.mu
func (r *Registry) setBundle(b Bundle) {
	r.bundles[b.Name] = b
	delete(r.warrants, b.Name)
	if b.Now == nil {
		return
	}
	w, err := b.Now.Warrant()
	if err != nil {
		r.cfg.Log.Error("the signature of an installed bundle cannot be read; its capabilities are not callable", "bundle", b.Name, "err", err)
		return
	}
	r.warrants[b.Name] = w
}

// NotCallableReason returns the reason why the capabilities of an installed bundle cannot be called at
// the moment, or nil if they can.
func (r *Registry) NotCallableReason(name string) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.barred(name)
}

// barred is like NotCallableReason, but for callers that hold r.mu.
//
// +checklocksread:r.mu
func (r *Registry) barred(name string) error {
	b, ok := r.bundles[name]
	if ok && b.Now == nil {
		return nil // not installed
	}
	w, ok := r.warrants[name]
	if !ok {
		return errUnvouched
	}
	return r.cfg.Trust.Holds(w)
}

var errUnvouched = errors.New("the bundle is no longer trusted")

// TrustChanged withdraws the pending approvals of calls to bundles that are no longer trusted. Such
// calls are refused from the moment of the trust change, even without it.
func (r *Registry) TrustChanged(ctx context.Context) error {
	r.changeMu.Lock()
	defer r.changeMu.Unlock()
	return r.dropBarred(ctx)
}

// dropBarred is like TrustChanged, but for callers that hold r.changeMu.
func (r *Registry) dropBarred(ctx context.Context) error {
	var errs []error
	for _, b := range r.Bundles() {
		why := r.NotCallableReason(b.Name)
		if why == nil {
			continue
		}
		r.cfg.Log.Warn("the capabilities of a bundle cannot be called: it is no longer trusted", "bundle", b.Name, "err", why)
		for _, ref := range b.Capabilities {
			if _, in, err := r.findStored(ref); err == nil {
				errs = append(errs, r.drop(ctx, in, false))
			}
		}
	}
	return errors.Join(errs...)
}

// Bundles returns the installed bundles and the pending installations, sorted by name.
func (r *Registry) Bundles() []Bundle {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var all []Bundle
	for _, name := range slices.Sorted(maps.Keys(r.bundles)) {
		all = append(all, r.bundles[name])
	}
	return all
}

// RemoveBundle removes a bundle with its capabilities and its skill.
func (r *Registry) RemoveBundle(ctx context.Context, name string) error {
	installed := true
	err := r.change(ctx, func() error {
		b, ok := r.bundle(name)
		installed = !ok || b.Now != nil
		if installed {
			return nil
		}
		if err := r.changeBundle(ctx, Change{Bundle: &b, Forget: true}); err != nil {
			return err
		}
		r.withdrawBundle(ctx, b, "it was removed")
		return nil
	})
	if err != nil || !installed {
		return err
	}
	return r.installer.Remove(ctx, name)
}

// withdrawBundle withdraws the pending approval of a bundle if this daemon has requested it.
func (r *Registry) withdrawBundle(ctx context.Context, b Bundle, why string) {
	if !b.Next.pendingAt(r.node()) || b.Next.Approval == "" {
		return
	}
	if _, err := r.cfg.Approvals.Withdraw(ctx, b.Next.Approval, why); err != nil {
		r.cfg.Log.Warn("cannot withdraw the approval request of a bundle", "bundle", b.Name, "approval", b.Next.Approval, "err", err)
	}
}

// installed implements bundle.Installer on the registry.
type installed struct{ r *Registry }

func (i installed) Installed(_ context.Context, name string) (*bundle.Installed, error) {
	b, _ := i.r.bundle(name)
	return b.Now, nil
}

// Register makes the capabilities and the skill of a bundle available and removes those that
// the new version no longer has, as one transaction.
func (i installed) Register(ctx context.Context, in *bundle.Installed, b *bundle.Bundle, replaces string) error {
	return i.r.change(ctx, func() error { return i.r.registerBundle(ctx, in, b, replaces) })
}

func (r *Registry) registerBundle(ctx context.Context, in *bundle.Installed, b *bundle.Bundle, replaces string) error {
	rec, _ := r.bundle(in.Name)
	was := ""
	if rec.Now != nil {
		was = rec.Now.Digest
	}
	if was != replaces && was != in.Digest {
		return fault.Newf(fault.Conflict, "registry.Register", in.Name, "another version was installed in the meantime")
	}
	c, err := r.collect(ctx, rec, in, b)
	if err == nil {
		err = r.changeBundle(ctx, c)
	}
	if err != nil {
		for _, prepared := range c.installed {
			err = errors.Join(err, r.drop(ctx, prepared, false))
		}
		return errors.Join(err, r.tidy())
	}
	for _, old := range c.asked {
		r.withdraw(ctx, old, "it was approved with the bundle "+in.Name)
	}
	return r.dropAll(ctx, c.Gone)
}

// collect returns the change that replaces rec by a bundle. If it fails, it also returns the part
// that it has prepared.
func (r *Registry) collect(ctx context.Context, rec Bundle, in *bundle.Installed, b *bundle.Bundle) (Change, error) {
	from := in.Name + "@" + in.Version
	c := Change{installed: map[string]*engine.Installed{}}
	var now []string
	taken := map[string][]byte{}
	for _, m := range b.Capabilities {
		ref := m.ID + "@" + m.Version
		if old, _, missing := r.findStored(ref); missing == nil && old.State == Approved && old.Bundle != "" && bundleName(old.Bundle) != in.Name {
			return c, fault.Newf(fault.Conflict, "registry.Install", ref, "the capability came with the bundle %s", old.Bundle)
		}
		if old, _, err := r.findStored(ref); err == nil && old.State == Pending {
			c.asked = append(c.asked, old)
		}
		got, prepared, err := r.admit(ctx, Request{Text: []byte(m.Source), Dir: b.Path(), By: rec.by(), Bundle: from, allowed: true, Again: true, taken: taken}, m)
		if err != nil {
			return c, fmt.Errorf("register %s: %w", ref, err)
		}
		if now = append(now, ref); prepared != nil {
			c.Put, c.installed[ref] = append(c.Put, got), prepared
		}
	}
	skill := ""
	if b.SkillFile != "" {
		c.Skill = &Skill{File: b.SkillFile, Text: string(b.Skill), By: rec.by(), Bundle: from}
		s, _, err := r.admitSkill(c.Skill, c.lookup(r))
		if err != nil {
			return c, err
		}
		skill = s.Name
	}
	c.Gone = r.cameWith(rec, now)
	if rec.Skill != skill {
		c.GoneSkill = rec.Skill
	}
	c.Bundle = &Bundle{Name: in.Name, Now: in, Capabilities: now, Skill: skill}
	return c, nil
}

// lookup returns the function by which the skill of a bundle finds capabilities, including
// those of the same change.
func (c Change) lookup(r *Registry) func(string) (*manifest.Capability, bool) {
	return func(cid string) (*manifest.Capability, bool) {
		for ref, in := range c.installed {
			if ref == cid || in.ID == cid {
				return in.Capability, true
			}
		}
		rec, in, err := r.findStored(cid)
		if err != nil {
			return nil, false
		}
		return in.Capability, rec.State == Approved
	}
}

// cameWith lists the records of the capabilities that came with a bundle, except those in
// stay. Capabilities that were registered separately are not included.
func (r *Registry) cameWith(b Bundle, stay []string) (all []Record) {
	for _, ref := range b.Capabilities {
		rec, _, err := r.findStored(ref)
		if err == nil && bundleName(rec.Bundle) == b.Name && !slices.Contains(stay, ref) {
			all = append(all, rec)
		}
	}
	return all
}

func (b Bundle) by() string {
	if b.Next == nil {
		return ""
	}
	return b.Next.By
}

func (i installed) Forget(ctx context.Context, name string) error {
	r := i.r
	return r.change(ctx, func() error {
		b, ok := r.bundle(name)
		if !ok {
			return fault.Newf(fault.NotFound, "registry.Forget", name, "no bundle of that name is installed")
		}
		gone := r.cameWith(b, nil)
		if err := r.changeBundle(ctx, Change{Bundle: &b, Forget: true, Gone: gone, GoneSkill: b.Skill}); err != nil {
			return err
		}
		r.withdrawBundle(ctx, b, "it was removed")
		return r.dropAll(ctx, gone)
	})
}

// approver requests the approval of a bundle.
type approver struct{ r *Registry }

func (a approver) Approve(ctx context.Context, v *bundle.Review) error {
	r := a.r
	q := reviewed(v)
	asked, err := r.cfg.Approvals.Open(ctx, q)
	if err != nil {
		return fmt.Errorf("request approval: %w", err)
	}
	if err := r.noteAsked(ctx, v, asked.ID); err != nil {
		return err
	}
	answer, err := r.answer(ctx, q)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.answers[v.Digest] = answer
	r.mu.Unlock()
	if granted, ok := answer.Granted(); ok && granted.Resource == q.Question.Resource {
		return nil
	}
	return fault.Newf(fault.Denied, "registry.Install", v.Name, "the installation was refused: %s", answer.Outcome)
}

// noteAsked stores the id of the approval request in the bundle's record.
func (r *Registry) noteAsked(ctx context.Context, v *bundle.Review, aid id.Approval) error {
	return r.change(ctx, func() error {
		b, _ := r.bundle(v.Name)
		if !b.Next.pendingAt(r.node()) || b.Next.Digest != v.Digest {
			return fault.Newf(fault.Conflict, "registry.Install", v.Name, "another installation of this bundle is in progress")
		}
		next := *b.Next
		next.Approval, b.Next = aid, &next
		return r.keepBundle(ctx, b)
	})
}

// reviewed returns the approval request for a bundle.
func reviewed(v *bundle.Review) approval.Request {
	attributes := map[string]string{"publisher": v.Publisher, "key": v.Key, "digest": v.Digest, "tier": string(v.Tier)}
	for name, list := range map[string][]string{"effects": v.Effects, "hosts": v.Hosts, "secrets": v.Secrets, "data in": v.Input, "data out": v.Output} {
		attribute(attributes, name, list)
	}
	if v.Replaces != "" {
		attributes["replaces"] = v.Replaces + " " + v.ReplacesDigest
	}
	number(attributes, v.Widens)
	help, _ := json.Marshal(map[string]string{"review": v.Text()})
	tier := approval.Standard
	if v.Tier == bundle.Elevated {
		tier = approval.Elevated
	}
	return approval.Request{
		Question: policy.Question{Action: ActionInstall, Resource: "bundle " + v.Name + "@" + v.Version, Attributes: attributes},
		Rule:     policy.Rule{Action: ActionInstall, Pattern: "*", Effect: policy.Ask, File: "registry"},
		Reason:   "the capabilities of a bundle must be approved before it is installed",
		Tier:     tier, Context: help, Scopes: []approval.Scope{approval.Once},
		Expires: time.Now().Add(approvalTime),
	}
}
