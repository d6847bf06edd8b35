package secret

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

// Grant lets those that g.To covers use a secret, from now on. It returns the
// grant as it is recorded, also with an error if not all have the file yet.
func (k *Keeper) Grant(ctx context.Context, g Grant) (Grant, error) {
	const op = "secret.Grant"
	k.change.Lock()
	g, err := k.grant(ctx, op, g)
	k.change.Unlock()
	if err != nil {
		return Grant{}, err
	}
	return g, k.changed(ctx, []*Grant{&g})
}

// grant records a grant. The caller holds change.
func (k *Keeper) grant(ctx context.Context, op string, g Grant) (Grant, error) {
	now := time.Now()
	if err := g.check(now); err != nil {
		return Grant{}, err
	}
	k.mu.RLock()
	r, count := k.secrets[g.Secret], len(k.grants)
	k.mu.RUnlock()
	if r == nil {
		return Grant{}, fault.Newf(fault.NotFound, op, g.Secret, "no such secret")
	}
	if r.Own != nil {
		return Grant{}, fault.Newf(fault.Denied, op, g.Secret, "the secret is its owner's alone, and used by no grant")
	}
	if count >= maxGrants {
		return Grant{}, fault.Newf(fault.Exhausted, op, g.Secret, "there are %d grants already", count)
	}
	g.ID, g.Created, g.Hosts = id.NewGrant(), now, slices.Clone(g.Hosts)
	e := Event{Kind: Granted, Secret: g.Secret, Grant: g.ID, Who: g.To, Delivery: g.Delivery, Host: strings.Join(g.Hosts, " "), By: g.By}
	if g.From != "" {
		e.Why = "a branch of the jail of grant " + string(g.From)
	}
	if err := k.record(ctx, e); err != nil {
		return Grant{}, err
	}
	if err := k.cfg.Store.PutGrant(ctx, g); err != nil {
		return Grant{}, err
	}
	k.mu.Lock()
	k.grants[g.ID] = &g
	k.mu.Unlock()
	select {
	case k.nudge <- struct{}{}:
	default:
	}
	return g, nil
}

// Revoke ends a grant, and those that branches have by it. When it returns nobody
// can use the secret by them any more.
func (k *Keeper) Revoke(ctx context.Context, gid id.Grant, by string) error {
	k.mu.RLock()
	_, there := k.grants[gid]
	k.mu.RUnlock()
	if !there {
		return fault.Newf(fault.NotFound, "secret.Revoke", string(gid), "no such grant")
	}
	ended, err := k.end(ctx, Revoked, by, "", func(g *Grant) bool { return g.ID == gid || g.From == gid })
	return errors.Join(err, k.changed(ctx, ended))
}

// Gone ends the grants of a jail that is no more. Nobody is told of a change: there
// is nobody left who could have the files.
func (k *Keeper) Gone(ctx context.Context, jid id.Jail) error {
	k.given.forget(jid)
	_, err := k.end(ctx, Revoked, "", "the jail was removed", func(g *Grant) bool { return g.To.Jail == jid })
	return err
}

// Branched gives a branch grants of its own, of those of the jail it was made
// from that say so. Nobody is told of a change: the branch has yet to ask.
func (k *Keeper) Branched(ctx context.Context, from, branch id.Jail) error {
	k.given.add(branch, k.given.names(from)...) // the memory of the branch holds them
	k.change.Lock()
	defer k.change.Unlock()
	now := time.Now()
	var errs []error
	for _, g := range k.where(func(g *Grant) bool { return g.Branches && g.To.Jail == from && !g.expired(now) }) {
		own := *g
		own.To.Jail = branch
		own.From = g.ID
		if g.From != "" {
			own.From = g.From // whoever revokes the first one means all
		}
		if _, err := k.grant(ctx, "secret.Branched", own); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// end takes grants away and returns them.
func (k *Keeper) end(ctx context.Context, kind Kind, by, why string, which func(*Grant) bool) ([]*Grant, error) {
	k.change.Lock()
	grants := k.where(which)
	if len(grants) == 0 {
		k.change.Unlock()
		return nil, nil
	}
	var ids []id.Grant
	k.mu.Lock()
	for _, g := range grants {
		ids = append(ids, g.ID)
		delete(k.grants, g.ID) // at once, whatever the database says
	}
	k.mu.Unlock()
	err := k.cfg.Store.DeleteGrants(ctx, ids)
	if err != nil { // dead all the same, and tried again by expireLoop
		k.mu.Lock()
		for _, g := range grants {
			dead := *g
			dead.Expires = &g.Created
			k.grants[g.ID] = &dead
		}
		k.mu.Unlock()
	}
	k.change.Unlock()
	for _, g := range grants {
		err = errors.Join(err, k.record(ctx, ended(g, kind, by, why)))
	}
	return grants, err
}

func ended(g *Grant, kind Kind, by, why string) Event {
	return Event{Kind: kind, Secret: g.Secret, Grant: g.ID, Who: g.To, Delivery: g.Delivery, By: by, Why: why}
}

// where returns grants, oldest first.
func (k *Keeper) where(which func(*Grant) bool) []*Grant {
	k.mu.RLock()
	defer k.mu.RUnlock()
	var found []*Grant
	for _, g := range k.grants {
		if which(g) {
			found = append(found, g)
		}
	}
	slices.SortFunc(found, func(a, b *Grant) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(string(a.ID), string(b.ID))
	})
	return found
}

func (k *Keeper) grantsOf(secret string) []*Grant {
	return k.where(func(g *Grant) bool { return g.Secret == secret })
}

// Resolve returns the value of a secret to who has a live grant for this use of
// it. Who has none learns nothing, not even whether there is such a secret. The
// caller zeroes the value.
func (k *Keeper) Resolve(ctx context.Context, who Scope, name string, u Use) (Value, error) {
	now := time.Now()
	live := k.where(func(g *Grant) bool { return g.Secret == name && g.To.covers(who) && g.allows(u) && !g.expired(now) })
	e := Event{Kind: Used, Secret: name, Who: who, Delivery: u.Delivery, Host: u.Host}
	if len(live) == 0 {
		e.Kind, e.Why = Refused, "no grant"
		if nameForm.MatchString(name) {
			return Value{}, errors.Join(k.refusal(name, who), k.record(ctx, e))
		}
		return Value{}, k.refusal(name, who) // nobody can have been granted that, and it may be anything
	}
	e.Grant = live[0].ID
	return k.use(ctx, e)
}

func (k *Keeper) refusal(name string, who Scope) error {
	return &fault.Error{Op: "secret.Resolve", Kind: fault.Denied, On: shortened(name),
		Err: errors.New("not granted to " + who.String()), Remedy: "have somebody grant it"}
}

func shortened(name string) string {
	if !nameForm.MatchString(name) {
		return ""
	}
	return name
}

// use returns the value of a secret that e says is used.
func (k *Keeper) use(ctx context.Context, e Event) (Value, error) {
	k.mu.RLock()
	r, keys := k.secrets[e.Secret], k.keys
	k.mu.RUnlock()
	if r == nil {
		return Value{}, k.refusal(e.Secret, e.Who) // deleted meanwhile
	}
	e.Provider = r.Provider
	v, err := k.fetch(ctx, r, keys)
	if err != nil {
		e.Kind, e.Why = Refused, "it could not be had: "+string(fault.KindOf(err))
		return Value{}, errors.Join(err, k.record(ctx, e))
	}
	// It may have been revoked while somebody far away was asked.
	k.mu.RLock()
	g := k.grants[e.Grant]
	k.mu.RUnlock()
	if g == nil || g.expired(time.Now()) {
		v.Zero()
		return Value{}, k.refusal(e.Secret, e.Who)
	}
	if err := k.record(ctx, e); err != nil {
		v.Zero()
		return Value{}, err
	}
	k.given.add(e.Who.Jail, e.Secret)
	k.used(ctx, e.Secret)
	return v, nil
}

// used remembers when a secret was last used, to the minute.
func (k *Keeper) used(ctx context.Context, name string) {
	now := time.Now()
	k.mu.RLock()
	r := k.secrets[name]
	k.mu.RUnlock()
	if r == nil || r.Used != nil && now.Sub(*r.Used) < usedEvery {
		return
	}
	k.change.Lock()
	defer k.change.Unlock()
	k.mu.RLock()
	r = k.secrets[name]
	k.mu.RUnlock()
	if r == nil {
		return
	}
	next := *r
	next.Used = &now
	if err := k.cfg.Store.PutSecret(ctx, next); err != nil {
		k.cfg.Log.Warn("time of use not recorded", "secret", name, "err", err)
		return
	}
	k.mu.Lock()
	k.secrets[name] = &next
	k.mu.Unlock()
}

// Files returns the values that who is to have as files, by name. One that cannot
// be had is without bytes, and the error says why. The caller zeroes them.
func (k *Keeper) Files(ctx context.Context, who Scope) (files []Value, err error) {
	now := time.Now()
	live := k.where(func(g *Grant) bool { return g.Delivery == File && g.To.covers(who) && !g.expired(now) })
	slices.SortStableFunc(live, func(a, b *Grant) int { return strings.Compare(a.Secret, b.Secret) })
	live = slices.CompactFunc(live, func(a, b *Grant) bool { return a.Secret == b.Secret })
	for _, g := range live {
		v, useErr := k.use(ctx, Event{Kind: Used, Secret: g.Secret, Grant: g.ID, Who: who, Delivery: File})
		if useErr != nil && !k.alive(g.ID) {
			continue // taken away since
		}
		if useErr != nil {
			v, err = NewValue(g.Secret, nil), errors.Join(err, useErr)
		}
		files = append(files, v)
	}
	return files, err
}

func (k *Keeper) alive(gid id.Grant) bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.grants[gid] != nil
}

// expireLoop takes grants away when their time has come.
func (k *Keeper) expireLoop(ctx context.Context) {
	const (
		longest = time.Hour // the wall clock may be set
		again   = 5 * time.Second
	)
	for shortest := time.Duration(0); ; {
		now, wait := time.Now(), longest
		for _, g := range k.where(func(g *Grant) bool { return g.Expires != nil }) {
			wait = min(wait, g.Expires.Sub(now))
		}
		timer := time.NewTimer(max(wait, shortest))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-k.nudge:
			timer.Stop()
			continue
		case <-timer.C:
		}
		now = time.Now()
		expired, err := k.end(ctx, Expired, "", "", func(g *Grant) bool { return g.expired(now) })
		shortest = 0
		if err != nil {
			shortest = again
			k.cfg.Log.Error("expired grants not recorded", "err", err)
		}
		if err := k.changed(ctx, expired); err != nil {
			k.cfg.Log.Error("what has expired may still be there", "err", err)
		}
	}
}
