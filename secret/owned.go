package secret

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"glasshouse/fault"
)

// An Own is a secret that is somebody's alone. No grant is of it: it is used by what was
// made for its owner, who says where it goes. Others do not learn that there is one.
type Own struct {
	Owner    string            `json:"owner"`
	Name     string            `json:"name"` // among the owner's
	ID       string            `json:"id"`   // by which it can be meant as well
	Version  int64             `json:"version"`
	Metadata map[string]string `json:"metadata,omitempty"`

	Created time.Time `json:"-"`
	Updated time.Time `json:"-"`
}

// maxOwned is how many secrets one owner may have.
const maxOwned = 1000

// key is what the secret is kept under. No secret of the daemon's has a colon in its name.
func (o Own) key() string { return o.Owner + ":" + o.Name }

func (o Own) check(op string) error {
	for _, s := range []string{o.Owner, o.Name, o.ID} {
		if s == "" || len(s) > 256 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == ':' }) {
			return fault.Fieldf(op, "name", "who owns a secret, and its name, are 1 to 256 letters, digits and signs without a colon")
		}
	}
	return nil
}

// own returns r as its owner knows it, who is to be asked for it.
func (r *Record) own() Own {
	o := *r.Own
	o.Metadata, o.Created, o.Updated = maps.Clone(o.Metadata), r.Created, r.Updated
	return o
}

// Add seals a value for its owner. It takes over b, which is zeroed. A name or an id that
// the owner has already, or one secret too many, is a fault.Conflict.
func (k *Keeper) Add(ctx context.Context, o Own, b []byte, by string) (Own, error) {
	const op = "secret.Add"
	defer clear(b)
	if err := errors.Join(o.check(op), checkValue(op, o.Name, b)); err != nil {
		return Own{}, err
	}
	k.change.Lock()
	defer k.change.Unlock()
	own := k.Owned(o.Owner)
	if slices.ContainsFunc(own, func(is Own) bool { return is.Name == o.Name || is.ID == o.ID }) {
		return Own{}, fault.Newf(fault.Conflict, op, "", "there is a secret of that name")
	}
	if len(own) >= maxOwned {
		return Own{}, fault.Newf(fault.Conflict, op, "", "there are %d secrets already", len(own))
	}
	o.Version, o.Metadata = 1, maps.Clone(o.Metadata)
	return k.keepOwned(ctx, op, o, b, by)
}

// Renew gives an owner's secret another value, which counts for the next who uses it, and,
// unless it is nil, other metadata. ref is its id or its name. It takes over b, which is
// zeroed.
func (k *Keeper) Renew(ctx context.Context, owner, ref string, b []byte, metadata map[string]string, by string) (Own, error) {
	const op = "secret.Renew"
	defer clear(b)
	k.change.Lock()
	defer k.change.Unlock()
	o, err := k.FindOwned(owner, ref)
	if err == nil {
		err = checkValue(op, o.Name, b)
	}
	if err != nil {
		return Own{}, err
	}
	o.Version++
	if metadata != nil {
		o.Metadata = maps.Clone(metadata)
	}
	return k.keepOwned(ctx, op, o, b, by)
}

// keepOwned seals and records. The caller holds change.
func (k *Keeper) keepOwned(ctx context.Context, op string, o Own, b []byte, by string) (Own, error) {
	sealed, err := k.ring().seal(o.key(), b)
	if err != nil {
		return Own{}, err
	}
	if err := k.replace(ctx, op, by, Record{Name: o.key(), Provider: Local, Sealed: sealed, Own: &o}); err != nil {
		return Own{}, err
	}
	return k.FindOwned(o.Owner, o.ID)
}

// Owned returns what somebody owns, oldest first.
func (k *Keeper) Owned(owner string) []Own {
	k.mu.RLock()
	defer k.mu.RUnlock()
	var list []Own
	for _, r := range k.secrets {
		if r.Own != nil && r.Own.Owner == owner {
			list = append(list, r.own())
		}
	}
	slices.SortFunc(list, func(a, b Own) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) })
	return list
}

// FindOwned returns a secret of its owner's by its id or its name.
func (k *Keeper) FindOwned(owner, ref string) (Own, error) {
	r, err := k.findOwned(owner, ref)
	if err != nil {
		return Own{}, err
	}
	return r.own(), nil
}

func (k *Keeper) findOwned(owner, ref string) (*Record, error) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	for _, r := range k.secrets {
		if o := r.Own; o != nil && o.Owner == owner && (o.ID == ref || o.Name == ref) {
			return r, nil
		}
	}
	return nil, fault.Newf(fault.NotFound, "secret.FindOwned", "", "no such secret")
}

// Drop forgets a secret of its owner's. Whoever would use it from here on is refused.
func (k *Keeper) Drop(ctx context.Context, owner, ref, by string) error {
	return k.remove(ctx, by, func() (*Record, error) { return k.findOwned(owner, ref) })
}

// ResolveOwned returns the value that an owner's secret of that name has now, to who has
// it put into a request to a host for the owner. The caller zeroes it. Whether who may be
// is the caller's to know.
func (k *Keeper) ResolveOwned(ctx context.Context, who Scope, owner, name, host string) (Value, error) {
	e := Event{Kind: Used, Secret: Own{Owner: owner, Name: name}.key(), Who: who, Delivery: Inject, Host: host}
	k.mu.RLock()
	r, keys := k.secrets[e.Secret], k.keys
	k.mu.RUnlock()
	if r == nil || r.Own == nil {
		e.Kind, e.Why = Refused, "its owner has no such secret"
		return Value{}, errors.Join(fault.Newf(fault.Denied, "secret.ResolveOwned", e.Secret, "no such secret"), k.record(ctx, e))
	}
	e.Provider = r.Provider
	v, err := keys.open(r.Name, r.Sealed, false)
	if err != nil {
		e.Kind, e.Why = Refused, "it could not be had: "+string(fault.KindOf(err))
		return Value{}, errors.Join(err, k.record(ctx, e))
	}
	if err := k.record(ctx, e); err != nil {
		v.Zero()
		return Value{}, err
	}
	k.given.add(who.Jail, e.Secret)
	k.used(ctx, e.Secret)
	return v, nil
}
