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

	"glasshouse/approval"
	"glasshouse/bundle"
	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy"
)

// A Bundle is one that is installed, or that somebody is asked about, as the store
// has it. An update that waits stands in Next.
type Bundle struct {
	Name string            `json:"name"`
	Now  *bundle.Installed `json:"now,omitempty"`
	Next *Install          `json:"next,omitempty"`

	Capabilities []string `json:"capabilities,omitempty"` // id@version, of what is installed
	Skill        string   `json:"skill,omitempty"`
}

// An Install is an installation on its way, or how the last one ended.
type Install struct {
	Version  string      `json:"version"`
	Digest   string      `json:"digest"`
	Path     string      `json:"path"`
	State    State       `json:"state"` // Pending, or Refused
	Approval id.Approval `json:"approval,omitempty"`
	Why      string      `json:"why,omitempty"`
	By       string      `json:"by,omitempty"`
	Created  time.Time   `json:"created"`
}

func bundleName(ref string) string {
	name, _, _ := strings.Cut(ref, "@")
	return name
}

// Install begins to install the bundle at path: an archive or a directory, of which a
// copy is kept when it returns. What is wrong with it is said at once; then a person is asked, and
// Bundles shows what became of it. One that is installed already is so at once.
func (r *Registry) Install(ctx context.Context, path, by string) (Bundle, error) {
	b, err := r.installer.Verify(path)
	if err != nil {
		return Bundle{}, err
	}
	if err := b.CheckClaims(); err != nil {
		return Bundle{}, err
	}
	name := b.Metadata.Name
	next := &Install{Version: b.Metadata.Version, Digest: b.Digest(), Path: path, State: Pending, By: by, Created: time.Now().UTC()}
	r.turn.Lock()
	rec, _ := r.bundle(name)
	if rec.Next != nil && rec.Next.State == Pending && rec.Next.Digest == next.Digest {
		r.turn.Unlock()
		return rec, nil
	}
	rec.Name, rec.Next = name, next
	err = r.keepBundle(ctx, rec)
	r.turn.Unlock()
	if err != nil {
		return rec, err
	}
	r.install(rec)
	return r.settled(ctx, name)
}

// settled waits until a person is asked, or until nobody has to be.
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

// install goes on with an installation until it ends, or the registry does.
func (r *Registry) install(rec Bundle) {
	path := rec.Next.Path
	if _, err := os.Stat(path); err != nil {
		path = filepath.Join(r.cfg.Bundles, rec.Next.Digest) // it was kept there before somebody was asked
	}
	r.wg.Go(func() {
		_, err := r.installer.Install(r.ctx, path)
		if r.ctx.Err() != nil {
			return // it goes on at the next start
		}
		r.turn.Lock()
		defer r.turn.Unlock()
		now, _ := r.bundle(rec.Name)
		switch {
		case now.Next == nil || now.Next.Digest != rec.Next.Digest:
			return
		case err == nil:
			now.Next = nil
		default:
			refused := *now.Next
			refused.State, refused.Why = Refused, err.Error()
			now.Next = &refused
		}
		if err := r.keepBundle(r.ctx, now); err != nil {
			r.cfg.Log.Error("how an installation ended is not recorded", "bundle", rec.Name, "err", err)
		}
	})
}

func (r *Registry) bundle(name string) (Bundle, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	b, ok := r.bundles[name]
	return b, ok
}

func (r *Registry) keepBundle(ctx context.Context, b Bundle) error {
	if err := r.cfg.Store.PutBundle(ctx, b); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bundles[b.Name] = b
	close(r.changed)
	r.changed = make(chan struct{})
	return nil
}

// Bundles lists what is installed or on its way, by name.
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
	if b, ok := r.bundle(name); ok && b.Now == nil { // nothing of it is installed
		r.turn.Lock()
		defer r.turn.Unlock()
		return r.forgetBundle(ctx, b)
	}
	return r.installer.Remove(ctx, name)
}

// forgetBundle forgets a record, and asks nobody about it any more.
func (r *Registry) forgetBundle(ctx context.Context, b Bundle) error {
	if b.Next != nil && b.Next.Approval != "" && b.Next.State == Pending {
		if _, err := r.cfg.Approvals.Withdraw(ctx, b.Next.Approval, "it was removed"); err != nil {
			r.cfg.Log.Warn("a question about a bundle is still asked", "bundle", b.Name, "approval", b.Next.Approval, "err", err)
		}
	}
	if err := r.cfg.Store.DeleteBundle(ctx, b.Name); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.bundles, b.Name)
	return nil
}

// installed is the registry as bundle.Installer wants it.
type installed struct{ r *Registry }

func (i installed) Installed(_ context.Context, name string) (*bundle.Installed, error) {
	b, _ := i.r.bundle(name)
	return b.Now, nil
}

// Register makes the capabilities and the skill of a bundle available. If one of them
// cannot be, those that were not there before are taken away again.
func (i installed) Register(ctx context.Context, in *bundle.Installed, b *bundle.Bundle, replaces string) (err error) {
	r := i.r
	r.turn.Lock()
	defer r.turn.Unlock()
	rec, _ := r.bundle(in.Name)
	was := ""
	if rec.Now != nil {
		was = rec.Now.Digest
	}
	if was != replaces && was != in.Digest {
		return fault.Newf(fault.Conflict, "registry.Register", in.Name, "another version was installed meanwhile")
	}
	from := in.Name + "@" + in.Version
	var now, added []string
	defer func() {
		if err != nil {
			for _, ref := range added {
				err = errors.Join(err, r.remove(ctx, ref))
			}
		}
	}()
	for _, c := range b.Capabilities {
		ref := c.ID + "@" + c.Version
		old, _, missing := r.Find(ref)
		if missing == nil && old.State == Approved && old.Bundle != "" && bundleName(old.Bundle) != in.Name {
			return fault.Newf(fault.Conflict, "registry.Register", ref, "it came with the bundle %s", old.Bundle)
		}
		if _, err := r.register(ctx, Request{Text: []byte(c.Source), Dir: b.Path(), By: rec.by(), Bundle: from, allowed: true, Again: true}, c); err != nil {
			return fmt.Errorf("register %s: %w", ref, err)
		}
		if now = append(now, ref); missing != nil {
			added = append(added, ref)
		}
	}
	skill := ""
	if b.SkillFile != "" {
		s, _, err := r.addSkill(ctx, Skill{File: b.SkillFile, Text: string(b.Skill), By: rec.by(), Bundle: from})
		if err != nil {
			return err
		}
		skill = s.Name
	}
	gone, goneSkill := rec.Capabilities, rec.Skill
	rec.Name, rec.Now, rec.Next, rec.Capabilities, rec.Skill = in.Name, in, nil, now, skill
	if err := r.keepBundle(ctx, rec); err != nil {
		return err
	}
	added = nil
	return r.takeAway(ctx, slices.DeleteFunc(slices.Clone(gone), func(ref string) bool { return slices.Contains(now, ref) }), goneSkill, skill)
}

// takeAway removes what a bundle has no longer.
func (r *Registry) takeAway(ctx context.Context, refs []string, skill, keep string) error {
	var errs []error
	for _, ref := range refs {
		if err := r.remove(ctx, ref); err != nil && fault.KindOf(err) != fault.NotFound {
			errs = append(errs, err)
		}
	}
	if skill != "" && skill != keep {
		if err := r.removeSkill(ctx, skill); err != nil && fault.KindOf(err) != fault.NotFound {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (b Bundle) by() string {
	if b.Next == nil {
		return ""
	}
	return b.Next.By
}

func (i installed) Forget(ctx context.Context, name string) error {
	i.r.turn.Lock()
	defer i.r.turn.Unlock()
	b, ok := i.r.bundle(name)
	if !ok {
		return fault.Newf(fault.NotFound, "registry.Forget", name, "no bundle of that name is installed")
	}
	return errors.Join(i.r.takeAway(ctx, b.Capabilities, b.Skill, ""), i.r.forgetBundle(ctx, b))
}

// approver has a person look at a bundle.
type approver struct{ r *Registry }

func (a approver) Approve(ctx context.Context, v *bundle.Review) error {
	r := a.r
	q := reviewed(v)
	asked, err := r.cfg.Approvals.Open(ctx, q)
	if err != nil {
		return fmt.Errorf("ask whether it may: %w", err)
	}
	if err := r.noteAsked(ctx, v, asked.ID); err != nil {
		return err
	}
	answer, err := r.cfg.Approvals.Ask(ctx, q)
	if err != nil {
		return err
	}
	if granted, ok := answer.Granted(); ok && granted.Resource == q.Question.Resource {
		return nil
	}
	return fault.Newf(fault.Denied, "registry.Install", v.Name, "it was refused: %s", answer.Outcome)
}

// noteAsked has the record say by what approval a person is asked.
func (r *Registry) noteAsked(ctx context.Context, v *bundle.Review, aid id.Approval) error {
	r.turn.Lock()
	defer r.turn.Unlock()
	b, _ := r.bundle(v.Name)
	if b.Next == nil || b.Next.Digest != v.Digest {
		return fault.Newf(fault.Conflict, "registry.Install", v.Name, "something else is installed now")
	}
	next := *b.Next
	next.Approval, b.Next = aid, &next
	return r.keepBundle(ctx, b)
}

// reviewed is what a person is asked about a bundle.
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
		Reason:   "what a bundle's capabilities may do has to be allowed before it is installed",
		Tier:     tier, Context: help, Scopes: []approval.Scope{approval.Once},
		Expires: time.Now().Add(approvalTime),
	}
}
