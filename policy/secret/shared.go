package secret

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

// Shared makes several daemons use one Store. All have the same key file.
type Shared struct {
	// Version returns a number that changes with each change of the store.
	Version func(ctx context.Context) (int64, error)

	// Has reports whether a jail belongs to this daemon, which ends its grants when they expire.
	Has func(id.Jail) bool

	// MakesKey is set for the daemon from which the others get the key file.
	MakesKey bool
}

const refreshTimeout = 5 * time.Second

// Refresh reads the changes of other daemons that use the same store.
func (k *Manager) Refresh(ctx context.Context) error {
	if k.cfg.Shared == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	k.changeMu.Lock()
	err := k.reread(ctx)
	changed := k.unnotified
	k.unnotified = nil
	k.changeMu.Unlock()
	failed := k.notifyChanged(ctx, changed)
	if failed != nil {
		k.changeMu.Lock()
		k.unnotified = append(k.unnotified, changed...)
		k.changeMu.Unlock()
	}
	return errors.Join(err, failed)
}

// begin locks changeMu for a change, and reads the changes of other daemons. The caller unlocks.
//
// +checklocksacquire:k.changeMu
func (k *Manager) begin(ctx context.Context) error {
	k.changeMu.Lock()
	if k.cfg.Shared == nil {
		return nil
	}
	return k.reread(ctx)
}

// reread replaces the secrets and grants by those of the store if another daemon has changed them.
// It adds the grants that are new, have ended, or whose secret has another value to k.unnotified.
//
// +checklocks:k.changeMu
func (k *Manager) reread(ctx context.Context) error {
	version, err := k.cfg.Shared.Version(ctx)
	if err != nil || version == k.version {
		return err
	}
	secrets, err := k.cfg.Store.Secrets(ctx)
	if err != nil {
		return err
	}
	grants, err := k.cfg.Store.Grants(ctx)
	if err != nil {
		return err
	}
	nextSecrets := map[string]*Record{}
	for _, r := range secrets {
		nextSecrets[r.Name] = &r
	}
	nextGrants := map[id.Grant]*Grant{}
	for _, g := range grants {
		if k.ended[g.ID] { // this daemon could not delete it yet
			g.Expires = &g.Created
		}
		nextGrants[g.ID] = &g
	}
	k.mu.RLock()
	oldSecrets, oldGrants := k.secrets, k.grants
	k.mu.RUnlock()
	differs := map[string]bool{}
	for name, old := range oldSecrets {
		now := nextSecrets[name]
		if now == nil || now.Sealed != old.Sealed || now.Provider != old.Provider || now.Path != old.Path {
			differs[name] = true
			k.keepOldValue(old)
		}
	}
	for name := range nextSecrets {
		differs[name] = differs[name] || oldSecrets[name] == nil
	}
	for gid, g := range nextGrants {
		if oldGrants[gid] == nil || differs[g.Secret] {
			k.unnotified = append(k.unnotified, g)
		}
	}
	for gid, g := range oldGrants {
		if nextGrants[gid] == nil {
			k.unnotified = append(k.unnotified, g)
		}
	}
	k.mu.Lock()
	k.secrets, k.grants = nextSecrets, nextGrants
	k.mu.Unlock()
	k.version = version
	k.wakeExpireLoop()
	return nil
}

// onMiss reads the changes of other daemons because something is unknown, and reports whether it
// may be known now.
func (k *Manager) onMiss(ctx context.Context) bool {
	if k.cfg.Shared == nil {
		return false
	}
	if err := k.Refresh(ctx); err != nil {
		k.cfg.Log.Warn("could not read the changes of secrets by other daemons", "err", err)
	}
	return true
}

// expires reports whether this daemon ends a grant when it expires.
func (k *Manager) expires(g *Grant) bool {
	return g.Expires != nil && (k.cfg.Shared == nil || g.To.Jail == "" || k.cfg.Shared.Has(g.To.Jail))
}

// Move moves the secrets and grants of another store to this one. They are sealed with the keys in
// file. Those whose names exist stay where they are, and are returned.
func (k *Manager) Move(ctx context.Context, from Store, file string) (left []string, err error) {
	secrets, err := from.Secrets(ctx)
	if err != nil || len(secrets) == 0 {
		return nil, err
	}
	grants, err := from.Grants(ctx)
	if err != nil {
		return nil, err
	}
	keys, err := openKeys(file, k.cfg.Passphrase, !slices.ContainsFunc(secrets, func(r Record) bool { return r.Provider == Local }))
	if err != nil {
		return nil, err
	}
	if err := k.begin(ctx); err != nil {
		k.changeMu.Unlock()
		return nil, err
	}
	defer k.changeMu.Unlock()
	for _, r := range secrets {
		moved, err := k.moveOne(ctx, r, grants, keys)
		if err != nil {
			return left, fmt.Errorf("move secret %s to the database of the fleet: %w", r.Name, err)
		}
		if !moved {
			left = append(left, r.Name)
			continue
		}
		if err := from.DeleteSecret(ctx, r.Name); err != nil {
			return left, err
		}
	}
	return left, k.reread(ctx)
}

// moveOne stores a secret and its grants, unless another secret has the name. A copy of an
// interrupted Move is not another one.
//
// +checklocks:k.changeMu
func (k *Manager) moveOne(ctx context.Context, r Record, grants []Grant, keys *keyring) (moved bool, err error) {
	k.mu.RLock()
	has, stored := k.secrets[r.Name], k.grants
	k.mu.RUnlock()
	if has != nil && !has.Created.Equal(r.Created) {
		return false, nil
	}
	if r.Provider == Local {
		v, err := keys.open(r.Name, r.Sealed, false)
		if err != nil {
			return false, err
		}
		defer v.Zero()
		r.Sealed, err = k.currentKeys().seal(r.Name, v.Bytes())
		if err != nil {
			return false, err
		}
	}
	if err := k.cfg.Store.PutSecret(ctx, r); err != nil {
		return false, err
	}
	for _, g := range grants {
		if g.Secret != r.Name || stored[g.ID] != nil {
			continue
		}
		if err := k.cfg.Store.PutGrant(ctx, g); err != nil {
			return false, err
		}
	}
	return true, nil
}

// errShared is returned for what only a single daemon can do.
var errShared = fault.Cannot("secret.Rotate", "the daemons of a fleet share the key of secrets, and it cannot be changed while they run",
	"store the secrets again under new names, or change their values at their source")
