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

// An OwnedSecret is a secret with an owner. It cannot be granted: it is used only by jails that act
// for its owner, who chooses the hosts. Its existence is not revealed to others.
type OwnedSecret struct {
	Owner    string            `json:"owner"`
	Name     string            `json:"name"` // unique per owner
	ID       string            `json:"id"`   // alternative to Name in references
	Version  int64             `json:"version"`
	Metadata map[string]string `json:"metadata,omitempty"`

	Created time.Time `json:"-"`
	Updated time.Time `json:"-"`
}

// maxOwned is the maximum number of secrets per owner.
const maxOwned = 1000

// key returns the name in the store. Names of secrets without an owner contain no colon.
func (o OwnedSecret) key() string { return o.Owner + ":" + o.Name }

func (o OwnedSecret) check(op string) error {
	for _, s := range []string{o.Owner, o.Name, o.ID} {
		if s == "" || len(s) > 256 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == ':' }) {
			return fault.Fieldf(op, "name", "owner, name and id must be 1 to 256 printable ASCII characters without spaces and colons")
		}
	}
	return nil
}

// own returns a copy of the owner's view of r. r must have an owner.
func (r *Record) own() OwnedSecret {
	o := *r.Owned
	o.Metadata, o.Created, o.Updated = maps.Clone(o.Metadata), r.Created, r.Updated
	return o
}

// AddOwned stores a new owned secret. It zeroes b. It returns fault.Conflict if the owner has a
// secret with the same name or id, or has the maximum number of secrets.
func (k *Manager) AddOwned(ctx context.Context, o OwnedSecret, b []byte, by string) (OwnedSecret, error) {
	const op = "secret.AddOwned"
	defer clear(b)
	if err := errors.Join(o.check(op), checkValue(op, o.Name, b)); err != nil {
		return OwnedSecret{}, err
	}
	err := k.begin(ctx)
	defer k.changeMu.Unlock()
	if err != nil {
		return OwnedSecret{}, err
	}
	own := k.Owned(o.Owner)
	if slices.ContainsFunc(own, func(e OwnedSecret) bool { return e.Name == o.Name || e.ID == o.ID }) {
		return OwnedSecret{}, fault.Newf(fault.Conflict, op, "", "a secret with this name exists")
	}
	if len(own) >= maxOwned {
		return OwnedSecret{}, fault.Newf(fault.Conflict, op, "", "the maximum of %d secrets is reached", len(own))
	}
	o.Version, o.Metadata = 1, maps.Clone(o.Metadata)
	return k.putOwned(ctx, op, o, b, by)
}

// UpdateOwned replaces the value of an owned secret and, unless it is nil, the metadata. The next
// use gets the new value. ref is the id or the name. UpdateOwned zeroes b.
func (k *Manager) UpdateOwned(ctx context.Context, owner, ref string, b []byte, metadata map[string]string, by string) (OwnedSecret, error) {
	const op = "secret.UpdateOwned"
	defer clear(b)
	var o OwnedSecret
	err := k.begin(ctx)
	defer k.changeMu.Unlock()
	if err == nil {
		o, err = k.findOwnedCopy(owner, ref)
	}
	if err == nil {
		err = checkValue(op, o.Name, b)
	}
	if err != nil {
		return OwnedSecret{}, err
	}
	o.Version++
	if metadata != nil {
		o.Metadata = maps.Clone(metadata)
	}
	return k.putOwned(ctx, op, o, b, by)
}

// putOwned encrypts and stores an owned secret. The caller holds changeMu.
func (k *Manager) putOwned(ctx context.Context, op string, o OwnedSecret, b []byte, by string) (OwnedSecret, error) {
	sealed, err := k.currentKeys().seal(o.key(), b)
	if err != nil {
		return OwnedSecret{}, err
	}
	if err := k.storeRecord(ctx, op, by, Record{Name: o.key(), Provider: Local, Sealed: sealed, Owned: &o}); err != nil {
		return OwnedSecret{}, err
	}
	return k.findOwnedCopy(o.Owner, o.ID)
}

// Owned returns the secrets of an owner, oldest first.
func (k *Manager) Owned(owner string) []OwnedSecret {
	k.mu.RLock()
	defer k.mu.RUnlock()
	var list []OwnedSecret
	for _, r := range k.secrets {
		if r.Owned != nil && r.Owned.Owner == owner {
			list = append(list, r.own())
		}
	}
	slices.SortFunc(list, func(a, b OwnedSecret) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) })
	return list
}

// FindOwned returns a secret of an owner by id or name.
func (k *Manager) FindOwned(ctx context.Context, owner, ref string) (OwnedSecret, error) {
	o, err := k.findOwnedCopy(owner, ref)
	if err != nil && k.onMiss(ctx) {
		return k.findOwnedCopy(owner, ref)
	}
	return o, err
}

func (k *Manager) findOwnedCopy(owner, ref string) (OwnedSecret, error) {
	r, err := k.findOwned(owner, ref)
	if err != nil {
		return OwnedSecret{}, err
	}
	return r.own(), nil
}

func (k *Manager) findOwned(owner, ref string) (*Record, error) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	for _, r := range k.secrets {
		if o := r.Owned; o != nil && o.Owner == owner && (o.ID == ref || o.Name == ref) {
			return r, nil
		}
	}
	return nil, fault.Newf(fault.NotFound, "secret.FindOwned", "", "no such secret")
}

// DeleteOwned deletes a secret of an owner. Later uses are refused.
func (k *Manager) DeleteOwned(ctx context.Context, owner, ref, by string) error {
	return k.remove(ctx, by, func() (*Record, error) { return k.findOwned(owner, ref) })
}

// ResolveOwned returns the current value of an owned secret for a request of who to a host.
// The caller must have checked that who acts for the owner, and zeroes the value.
func (k *Manager) ResolveOwned(ctx context.Context, who Scope, owner, name, host string) (Value, error) {
	e := Event{Kind: Used, Secret: OwnedSecret{Owner: owner, Name: name}.key(), Who: who, Delivery: Inject, Host: host}
	read := func() (*Record, *keyring) {
		k.mu.RLock()
		defer k.mu.RUnlock()
		return k.secrets[e.Secret], k.keys
	}
	r, keys := read()
	if r == nil && k.onMiss(ctx) {
		r, keys = read()
	}
	if r == nil || r.Owned == nil {
		e.Kind, e.Why = Refused, "the owner has no such secret"
		return Value{}, errors.Join(fault.Newf(fault.Denied, "secret.ResolveOwned", e.Secret, "no such secret"), k.record(ctx, e))
	}
	e.Provider = r.Provider
	v, err := keys.open(r.Name, r.Sealed, false)
	if err != nil {
		e.Kind, e.Why = Refused, "the value is unavailable: "+string(fault.KindOf(err))
		return Value{}, errors.Join(err, k.record(ctx, e))
	}
	if err := k.record(ctx, e); err != nil {
		v.Zero()
		return Value{}, err
	}
	k.delivered.add(who.Jail, e.Secret)
	k.updateLastUsed(ctx, e.Secret)
	return v, nil
}
