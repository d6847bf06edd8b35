package secret

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

// Grant creates a grant and returns it as stored. If updating the secret files fails, the
// grant is returned with the error.
func (k *Manager) Grant(ctx context.Context, g Grant) (Grant, error) {
	const op = "secret.Grant"
	err := k.begin(ctx)
	if err == nil {
		g, err = k.grant(ctx, op, g)
	}
	k.changeMu.Unlock()
	if err != nil {
		return Grant{}, err
	}
	return g, k.notifyChanged(ctx, []*Grant{&g})
}

// grant stores a grant. The caller holds changeMu.
func (k *Manager) grant(ctx context.Context, op string, g Grant) (Grant, error) {
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
	if r.Owned != nil {
		return Grant{}, fault.Newf(fault.Denied, op, g.Secret, "owned secrets cannot be granted")
	}
	if count >= maxGrants {
		return Grant{}, fault.Newf(fault.Exhausted, op, g.Secret, "the maximum of %d grants is reached", count)
	}
	g.ID, g.Created, g.Hosts = id.NewGrant(), now, slices.Clone(g.Hosts)
	e := Event{Kind: Granted, Secret: g.Secret, Grant: g.ID, Who: g.To, Delivery: g.Delivery, Host: strings.Join(g.Hosts, " "), By: g.By}
	if g.From != "" {
		e.Why = "branch of the jail with the grant " + string(g.From)
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
	k.wakeExpireLoop()
	return g, nil
}

// wakeExpireLoop makes expireLoop read the grants again.
func (k *Manager) wakeExpireLoop() {
	select {
	case k.expiryChanged <- struct{}{}:
	default: // a signal is pending
	}
}

// Revoke ends a grant and the grants that branches inherited from it. When it returns, they
// can no longer be used.
func (k *Manager) Revoke(ctx context.Context, gid id.Grant, by string) error {
	if !k.hasGrant(gid) && !(k.onMiss(ctx) && k.hasGrant(gid)) {
		return fault.Newf(fault.NotFound, "secret.Revoke", string(gid), "no such grant")
	}
	ended, err := k.endGrants(ctx, Revoked, by, "", func(g *Grant) bool { return g.ID == gid || g.From == gid })
	return errors.Join(err, k.notifyChanged(ctx, ended))
}

// JailDeleted ends the grants of a deleted jail. It does not call Changed: the files were removed
// with the jail.
func (k *Manager) JailDeleted(ctx context.Context, jid id.Jail) error {
	k.delivered.forget(jid)
	if _, err := k.endGrants(ctx, Revoked, "", "the jail was removed", func(g *Grant) bool { return g.To.Jail == jid }); err != nil {
		return fmt.Errorf("revoke the grants of jail %s: %w", jid, err)
	}
	return nil
}

// CopyGrantsToBranch copies the inheritable grants of a jail to a branch. It does not call Changed: the
// branch requests its files when it starts.
func (k *Manager) CopyGrantsToBranch(ctx context.Context, from, branch id.Jail) error {
	k.delivered.add(branch, k.delivered.names(from)...) // the memory of the branch contains these values
	k.changeMu.Lock()
	defer k.changeMu.Unlock()
	now := time.Now()
	var errs []error
	for _, g := range k.findGrants(func(g *Grant) bool { return g.Branches && g.To.Jail == from && !g.expired(now) }) {
		own := *g
		own.To.Jail = branch
		own.From = g.ID
		if g.From != "" {
			own.From = g.From // revoking the original grant revokes all copies
		}
		if _, err := k.grant(ctx, "secret.Branched", own); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// endGrants removes the matching grants and returns them. It records the end of each grant
// once, even if it is called again because the store could not delete the grant.
func (k *Manager) endGrants(ctx context.Context, kind Kind, by, why string, which func(*Grant) bool) ([]*Grant, error) {
	k.changeMu.Lock()
	defer k.changeMu.Unlock()
	grants := k.findGrants(which)
	if len(grants) == 0 {
		return nil, nil
	}
	var ids []id.Grant
	k.mu.Lock()
	for _, g := range grants {
		ids = append(ids, g.ID)
		delete(k.grants, g.ID) // before the database, which may fail
	}
	k.mu.Unlock()
	err := k.cfg.Store.DeleteGrants(ctx, ids)
	if err != nil { // keep them as expired, so that expireLoop retries
		k.mu.Lock()
		for _, g := range grants {
			expired := *g
			expired.Expires = &g.Created
			k.grants[g.ID] = &expired
		}
		k.mu.Unlock()
		k.wakeExpireLoop()
	}
	deleted := err == nil
	for _, g := range grants {
		err = errors.Join(err, k.recordEnd(ctx, g, kind, by, why))
		if deleted {
			delete(k.ended, g.ID)
		}
	}
	return grants, err
}

// recordEnd records the end of a grant, unless it is recorded already. The caller holds
// changeMu, and removes the grant from k.ended when the store has deleted it.
//
// +checklocks:k.changeMu
func (k *Manager) recordEnd(ctx context.Context, g *Grant, kind Kind, by, why string) error {
	if k.ended[g.ID] {
		return nil
	}
	err := k.record(ctx, Event{Kind: kind, Secret: g.Secret, Grant: g.ID, Who: g.To, Delivery: g.Delivery, By: by, Why: why})
	if err == nil {
		k.ended[g.ID] = true
	}
	return err
}

// findGrants returns the matching grants, oldest first.
func (k *Manager) findGrants(which func(*Grant) bool) []*Grant {
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

func (k *Manager) grantsOf(secret string) []*Grant {
	return k.findGrants(func(g *Grant) bool { return g.Secret == secret })
}

// Resolve returns the value of a secret if who has a grant for this use. Without a grant, the
// error does not reveal whether the secret exists. The caller zeroes the value.
func (k *Manager) Resolve(ctx context.Context, who Scope, name string, u Use) (Value, error) {
	now := time.Now()
	granted := func(g *Grant) bool { return g.Secret == name && g.To.covers(who) && g.allows(u) && !g.expired(now) }
	live := k.findGrants(granted)
	if len(live) == 0 && k.onMiss(ctx) {
		live = k.findGrants(granted)
	}
	e := Event{Kind: Used, Secret: name, Who: who, Delivery: u.Delivery, Host: u.Host}
	if len(live) == 0 {
		e.Kind, e.Why = Refused, "no grant"
		if namePattern.MatchString(name) {
			return Value{}, errors.Join(k.notGranted(name, who), k.record(ctx, e))
		}
		return Value{}, k.notGranted(name, who) // not a valid name, so it is not recorded
	}
	e.Grant = live[0].ID
	return k.use(ctx, e)
}

// Granted returns the name of the secret that was granted to who for a use, or "". Of several
// it returns the newest grant's.
func (k *Manager) Granted(who Scope, u Use) string {
	now := time.Now()
	live := k.findGrants(func(g *Grant) bool { return g.To.covers(who) && g.allows(u) && !g.expired(now) })
	if len(live) == 0 {
		return ""
	}
	return live[len(live)-1].Secret
}

func (k *Manager) notGranted(name string, who Scope) error {
	return &fault.Error{Op: "secret.Resolve", Kind: fault.Denied, On: validOrEmpty(name),
		Err: errors.New("not granted to " + who.String()), Remedy: "grant the secret with glasshouse secret grant"}
}

func validOrEmpty(name string) string {
	if !namePattern.MatchString(name) {
		return ""
	}
	return name
}

// use fetches a value and records the use.
func (k *Manager) use(ctx context.Context, e Event) (Value, error) {
	k.mu.RLock()
	r, keys := k.secrets[e.Secret], k.keys
	k.mu.RUnlock()
	if r == nil {
		return Value{}, k.notGranted(e.Secret, e.Who) // deleted in the meantime
	}
	e.Provider = r.Provider
	v, err := k.fetch(ctx, r, keys)
	if err != nil {
		e.Kind, e.Why = Refused, "the value is unavailable: "+string(fault.KindOf(err))
		return Value{}, errors.Join(err, k.record(ctx, e))
	}
	// The grant may have been revoked while the provider was queried.
	k.mu.RLock()
	g := k.grants[e.Grant]
	k.mu.RUnlock()
	if g == nil || g.expired(time.Now()) {
		v.Zero()
		return Value{}, k.notGranted(e.Secret, e.Who)
	}
	if err := k.record(ctx, e); err != nil {
		v.Zero()
		return Value{}, err
	}
	k.delivered.add(e.Who.Jail, e.Secret)
	k.updateLastUsed(ctx, e.Secret)
	return v, nil
}

// updateLastUsed stores the time of the last use, at most once per lastUsedInterval.
func (k *Manager) updateLastUsed(ctx context.Context, name string) {
	now := time.Now()
	k.mu.RLock()
	r := k.secrets[name]
	k.mu.RUnlock()
	if r == nil || r.Used != nil && now.Sub(*r.Used) < lastUsedInterval {
		return
	}
	k.changeMu.Lock()
	defer k.changeMu.Unlock()
	k.mu.RLock()
	r = k.secrets[name]
	k.mu.RUnlock()
	if r == nil {
		return
	}
	next := *r
	next.Used = &now
	if err := k.cfg.Store.Used(ctx, name, now); err != nil {
		k.cfg.Log.Warn("could not store the time of last use of a secret", "secret", name, "err", err)
		return
	}
	k.mu.Lock()
	k.secrets[name] = &next
	k.mu.Unlock()
}

// Files returns the values of a subject's file grants, sorted by name. A value that cannot be
// fetched is nil, and the error says why. The caller zeroes the values.
func (k *Manager) Files(ctx context.Context, who Scope) (files []Value, err error) {
	now := time.Now()
	live := k.findGrants(func(g *Grant) bool { return g.Delivery == File && g.To.covers(who) && !g.expired(now) })
	slices.SortStableFunc(live, func(a, b *Grant) int { return strings.Compare(a.Secret, b.Secret) })
	live = slices.CompactFunc(live, func(a, b *Grant) bool { return a.Secret == b.Secret })
	for _, g := range live {
		v, useErr := k.use(ctx, Event{Kind: Used, Secret: g.Secret, Grant: g.ID, Who: who, Delivery: File})
		if useErr != nil && !k.hasGrant(g.ID) {
			continue // revoked in the meantime
		}
		if useErr != nil {
			v, err = NewValue(g.Secret, nil), errors.Join(err, useErr)
		}
		files = append(files, v)
	}
	return files, err
}

func (k *Manager) hasGrant(gid id.Grant) bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.grants[gid] != nil
}

// expireLoop ends grants when they expire.
func (k *Manager) expireLoop(ctx context.Context) {
	const (
		longest = time.Hour // in case the wall clock is changed
		retry   = 5 * time.Second
	)
	for shortest := time.Duration(0); ; {
		now, wait := time.Now(), longest
		for _, g := range k.findGrants(k.expires) {
			wait = min(wait, g.Expires.Sub(now))
		}
		timer := time.NewTimer(max(wait, shortest))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-k.expiryChanged:
			timer.Stop()
			continue
		case <-timer.C:
		}
		now = time.Now()
		expired, err := k.endGrants(ctx, Expired, "", "", func(g *Grant) bool { return g.expired(now) && k.expires(g) })
		shortest = 0
		if err != nil {
			shortest = retry
			k.cfg.Log.Error("could not record the expiry of grants", "err", err)
		}
		if err := k.notifyChanged(ctx, expired); err != nil {
			k.cfg.Log.Error("could not remove the files of expired grants", "err", err)
		}
	}
}
