// Package secret stores secrets encrypted, fetches values from external providers, and gives
// values only to subjects that have a grant.
//
// A plaintext value exists only as a Value, which never prints it. Events, lists and errors
// contain the names of secrets only.
package secret

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
)

const (
	// MaxValue is the maximum size of a secret in bytes.
	MaxValue = 64 << 10

	maxSecrets = 10_000
	maxGrants  = 100_000

	// lastUsedInterval is the resolution of the stored time of last use.
	lastUsedInterval = time.Minute
)

// A Record is a stored secret.
type Record struct {
	Name     string
	Provider string // Local, or the name of an external provider
	Path     string // path at an external provider
	Sealed   string // the encrypted value, for Local
	Created  time.Time
	Updated  time.Time
	Used     *time.Time
	Owned    *OwnedSecret // set if the secret has an owner; nil: a secret of the daemon
}

// Local is the provider of values that the store keeps encrypted.
const Local = "local"

// A Store stores secrets and grants. When a method returns nil, the change is durable.
type Store interface {
	Secrets(ctx context.Context) ([]Record, error)
	PutSecret(ctx context.Context, r Record) error
	Used(ctx context.Context, name string, at time.Time) error  // sets Record.Used
	Reseal(ctx context.Context, sealed map[string]string) error // atomic; sealed values by name
	Grants(ctx context.Context) ([]Grant, error)
	PutGrant(ctx context.Context, g Grant) error
	DeleteGrants(ctx context.Context, ids []id.Grant) error

	// DeleteSecret deletes a secret and its grants in one transaction.
	DeleteSecret(ctx context.Context, name string) error
}

// A Provider fetches values from an external store. Its errors never contain a value.
type Provider interface {
	// Check returns an error for a path that is invalid at the provider.
	Check(path string) error

	// Fetch returns a value. The caller owns the bytes and overwrites them.
	Fetch(ctx context.Context, path string) ([]byte, error)
}

// A Recorder records events before they happen. If Record fails, the operation does not happen;
// except operations that revoke access, which happen regardless.
type Recorder interface {
	Record(ctx context.Context, e Event) error
}

// Config is the configuration of a Manager. Fields without a default must be set.
type Config struct {
	Store      Store
	Recorder   Recorder
	KeyFile    string              // created at the first start with mode 0600
	Passphrase []byte              // encrypts the key file; empty: not encrypted
	Providers  map[string]Provider // by the prefix of a reference
	Shared     *Shared             // nil: no other daemon uses the store
	Log        *slog.Logger

	// Changed is called when the secret files of a scope have changed, and returns when they
	// are updated. It may call Files. The operation that caused the change returns its error
	// but is not undone.
	Changed func(ctx context.Context, s Scope) error
}

// A Manager manages secrets and grants. It is safe for concurrent use.
type Manager struct {
	cfg           Config
	cancel        context.CancelFunc
	wg            sync.WaitGroup
	expiryChanged chan struct{} // wakes expireLoop
	history       *valueHistory // set by Open
	delivered     deliveredNames

	changeMu sync.Mutex // held while secrets, grants or the key change; locked before mu
	// ended are the grants whose end is recorded, but which the store could not delete yet.
	// +checklocks:changeMu
	ended map[id.Grant]bool
	// version is that of the store when it was read; 0: unknown.
	// +checklocks:changeMu
	version int64
	// unnotified are grants that another daemon has changed, before Changed is called.
	// +checklocks:changeMu
	unnotified []*Grant

	mu sync.RWMutex
	// +checklocks:mu
	keys *keyring
	// +checklocks:mu
	secrets map[string]*Record
	// +checklocks:mu
	grants map[id.Grant]*Grant
}

// NewManager returns a Manager. It does nothing until Open.
func NewManager(cfg Config) *Manager {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Changed == nil {
		cfg.Changed = func(context.Context, Scope) error { return nil }
	}
	return &Manager{cfg: cfg, expiryChanged: make(chan struct{}, 1), ended: map[id.Grant]bool{}, secrets: map[string]*Record{}, grants: map[id.Grant]*Grant{}}
}

// Open loads the secrets, grants and keys, and finishes an interrupted rotation of the key.
func (k *Manager) Open(ctx context.Context) error {
	secrets, err := k.cfg.Store.Secrets(ctx)
	if err != nil {
		return err
	}
	grants, err := k.cfg.Store.Grants(ctx)
	if err != nil {
		return err
	}
	k.mu.Lock()
	sealed := k.cfg.Shared != nil && !k.cfg.Shared.MakesKey // or will be
	for _, r := range secrets {
		k.secrets[r.Name] = &r
		sealed = sealed || r.Provider == Local
	}
	for _, g := range grants {
		k.grants[g.ID] = &g
	}
	k.mu.Unlock()
	k.history, err = newValueHistory()
	if err != nil {
		return fmt.Errorf("create a key for old values: %w", err)
	}
	keys, err := openKeys(k.cfg.KeyFile, k.cfg.Passphrase, !sealed)
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.keys = keys
	k.mu.Unlock()
	if len(keys.ids) > 1 && k.cfg.Shared == nil {
		if err := k.reseal(ctx); err != nil {
			return fmt.Errorf("finish the key rotation: %w", err)
		}
	}
	ctx, k.cancel = context.WithCancel(context.WithoutCancel(ctx))
	k.wg.Go(func() { k.expireLoop(ctx) })
	return nil
}

// Close stops the expiry of grants. It may be called twice, and without Open.
func (k *Manager) Close() error {
	if k.cancel != nil {
		k.cancel()
		k.wg.Wait()
	}
	return nil
}

var namePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]{0,127}$`)

func checkName(op, name string) error {
	if !namePattern.MatchString(name) {
		return fault.Fieldf(op, "name", "%.140q is not a valid name: want a letter or _, then letters, digits, _ . or -, at most 128 characters", name)
	}
	return nil
}

// Put encrypts a value and stores it under a name, replacing an earlier one. It zeroes b.
func (k *Manager) Put(ctx context.Context, name string, b []byte, by string) error {
	const op = "secret.Put"
	defer clear(b)
	if err := checkName(op, name); err != nil {
		return err
	}
	if err := checkValue(op, name, b); err != nil {
		return err
	}
	return k.put(ctx, op, by, func() (Record, error) {
		sealed, err := k.currentKeys().seal(name, b)
		return Record{Name: name, Provider: Local, Sealed: sealed}, err
	})
}

func checkValue(op, name string, b []byte) error {
	if len(b) > MaxValue {
		return fault.Newf(fault.TooLarge, op, name, "%d bytes exceed the maximum of %d", len(b), MaxValue)
	}
	if len(b) == 0 {
		return fault.Fieldf(op, "value", "the value is empty")
	}
	return nil
}

// PutReference stores a reference to a provider, which is queried at each use:
// "vault:kv/data/app#key".
func (k *Manager) PutReference(ctx context.Context, name, reference, by string) error {
	const op = "secret.PutReference"
	if err := checkName(op, name); err != nil {
		return err
	}
	provider, path, ok := strings.Cut(reference, ":")
	p := k.cfg.Providers[provider]
	switch {
	case !ok || len(reference) > 1024:
		return fault.Fieldf(op, "reference", "want PROVIDER:PATH")
	case p == nil:
		return fault.Fieldf(op, "reference", "provider %.40q is not configured; configured providers: %s", provider, strings.Join(slices.Sorted(maps.Keys(k.cfg.Providers)), ", "))
	}
	if err := p.Check(path); err != nil {
		return fault.Fieldf(op, "reference", "%w", err)
	}
	return k.put(ctx, op, by, func() (Record, error) { return Record{Name: name, Provider: provider, Path: path}, nil })
}

func (k *Manager) currentKeys() *keyring {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.keys
}

func (k *Manager) put(ctx context.Context, op, by string, make func() (Record, error)) error {
	var r Record
	err := k.begin(ctx)
	if err == nil {
		r, err = make()
	}
	if err == nil {
		err = k.storeRecord(ctx, op, by, r)
	}
	k.changeMu.Unlock()
	if err != nil {
		return err
	}
	return k.notifyChanged(ctx, k.grantsOf(r.Name))
}

// storeRecord stores a new or changed secret. The caller holds changeMu.
func (k *Manager) storeRecord(ctx context.Context, op, by string, r Record) error {
	now := time.Now()
	r.Created, r.Updated = now, now
	k.mu.RLock()
	old, count := k.secrets[r.Name], len(k.secrets)
	if old != nil {
		r.Created, r.Used = old.Created, old.Used
	}
	k.mu.RUnlock()
	if old == nil && count >= maxSecrets {
		return fault.Newf(fault.Exhausted, op, r.Name, "the maximum of %d secrets is reached", count)
	}
	if err := k.record(ctx, Event{Kind: Stored, Secret: r.Name, Provider: r.Provider, By: by}); err != nil {
		return err
	}
	if err := k.cfg.Store.PutSecret(ctx, r); err != nil {
		return err
	}
	k.keepOldValue(old)
	k.mu.Lock()
	k.secrets[r.Name] = &r
	k.mu.Unlock()
	return nil
}

// Delete deletes a secret and its grants.
func (k *Manager) Delete(ctx context.Context, name, by string) error {
	return k.remove(ctx, by, func() (*Record, error) {
		k.mu.RLock()
		defer k.mu.RUnlock()
		if r := k.secrets[name]; r != nil {
			return r, nil
		}
		return nil, fault.Newf(fault.NotFound, "secret.Delete", name, "no such secret")
	})
}

// remove deletes the secret that find returns. It calls find with changeMu held.
func (k *Manager) remove(ctx context.Context, by string, find func() (*Record, error)) error {
	var r *Record
	err := k.begin(ctx)
	if err == nil {
		r, err = find()
	}
	if err != nil {
		k.changeMu.Unlock()
		return err
	}
	name := r.Name
	grants := k.grantsOf(name)
	if err := k.cfg.Store.DeleteSecret(ctx, name); err != nil {
		k.changeMu.Unlock()
		return err
	}
	k.keepOldValue(r)
	k.mu.Lock()
	delete(k.secrets, name)
	for _, g := range grants {
		delete(k.grants, g.ID)
	}
	k.mu.Unlock()
	err = k.record(ctx, Event{Kind: Deleted, Secret: name, Provider: r.Provider, By: by})
	for _, g := range grants {
		err = errors.Join(err, k.recordEnd(ctx, g, Revoked, by, "the secret was deleted"))
		delete(k.ended, g.ID)
	}
	k.changeMu.Unlock()
	return errors.Join(err, k.notifyChanged(ctx, grants))
}

// Info describes a secret without its value.
type Info struct {
	Name     string     `json:"name"`
	Owner    string     `json:"owner,omitempty"` // owner of an owned secret
	Provider string     `json:"provider"`
	Path     string     `json:"path,omitempty"` // path at the provider
	Created  time.Time  `json:"created"`
	Updated  time.Time  `json:"updated"`
	Used     *time.Time `json:"used,omitempty"`
	Grants   []Grant    `json:"grants"` // oldest first
}

// List describes all secrets, sorted by name.
func (k *Manager) List() []Info {
	k.mu.RLock()
	defer k.mu.RUnlock()
	list := make([]Info, 0, len(k.secrets))
	index := map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(k.secrets)) {
		r := k.secrets[name]
		index[name] = len(list)
		info := Info{Name: r.Name, Provider: r.Provider, Path: r.Path, Created: r.Created, Updated: r.Updated, Used: r.Used, Grants: []Grant{}}
		if r.Owned != nil {
			info.Owner = r.Owned.Owner
		}
		list = append(list, info)
	}
	for _, g := range k.grants {
		i := index[g.Secret]
		list[i].Grants = append(list[i].Grants, *g)
	}
	for _, info := range list {
		slices.SortFunc(info.Grants, func(a, b Grant) int { return a.Created.Compare(b.Created) })
	}
	return list
}

// Rotate encrypts all values with a new key and deletes the old key. If it is interrupted, the
// next Open finishes it.
func (k *Manager) Rotate(ctx context.Context, by string) error {
	if k.cfg.Shared != nil {
		return errShared
	}
	k.changeMu.Lock()
	defer k.changeMu.Unlock()
	next, err := k.currentKeys().withNew()
	if err != nil {
		return err
	}
	if err := k.record(ctx, Event{Kind: Rotated, By: by}); err != nil {
		return err
	}
	// The key file contains both keys until all values are encrypted with the new one, so that
	// an interruption at any point leaves all values readable.
	if err := next.write(); err != nil {
		return fmt.Errorf("add the new key to the key file: %w", err)
	}
	k.mu.Lock()
	k.keys = next
	k.mu.Unlock()
	return k.reseal(ctx)
}

// reseal encrypts all values with the newest key and drops the other keys. The caller holds
// changeMu, or is Open.
func (k *Manager) reseal(ctx context.Context) error {
	k.mu.RLock()
	keys, secrets := k.keys, maps.Clone(k.secrets)
	k.mu.RUnlock()
	sealed := map[string]string{}
	for name, r := range secrets {
		if r.Provider != Local {
			continue
		}
		if v, err := keys.open(name, r.Sealed, true); err == nil {
			v.Zero()
			continue
		}
		v, err := keys.open(name, r.Sealed, false)
		if err != nil {
			return err
		}
		s, err := keys.seal(name, v.Bytes())
		v.Zero()
		if err != nil {
			return err
		}
		sealed[name] = s
	}
	if err := k.cfg.Store.Reseal(ctx, sealed); err != nil {
		return err
	}
	last := *keys
	last.ids = keys.ids[:1]
	k.mu.Lock()
	for name, s := range sealed {
		r := *k.secrets[name]
		r.Sealed = s
		k.secrets[name] = &r
	}
	k.mu.Unlock()
	if err := last.write(); err != nil {
		return fmt.Errorf("remove the old keys from the key file: %w", err)
	}
	k.mu.Lock()
	k.keys = &last
	k.mu.Unlock()
	return nil
}

// fetch returns a secret's value. keys must be the keyring that was current when r was read.
func (k *Manager) fetch(ctx context.Context, r *Record, keys *keyring) (Value, error) {
	if r.Provider == Local {
		return keys.open(r.Name, r.Sealed, false)
	}
	const op = "secret.Fetch"
	p := k.cfg.Providers[r.Provider]
	if p == nil {
		return Value{}, fault.Newf(fault.Unavailable, op, r.Name, "the provider %s is no longer configured", r.Provider)
	}
	b, err := p.Fetch(ctx, r.Path)
	if err != nil {
		return Value{}, fmt.Errorf("fetch secret %s from %s: %w", r.Name, r.Provider, err)
	}
	if len(b) == 0 || len(b) > MaxValue {
		clear(b)
		return Value{}, fault.Newf(fault.Unavailable, op, r.Name, "the value at %s is empty or exceeds %d bytes", r.Provider, MaxValue)
	}
	v := NewValue(r.Name, b)
	if err := k.history.add(v); err != nil {
		v.Zero()
		return Value{}, err
	}
	return v, nil
}

func (k *Manager) record(ctx context.Context, e Event) error {
	e.Time = time.Now()
	if err := k.cfg.Recorder.Record(ctx, e); err != nil {
		return fmt.Errorf("record that secret %s was %s: %w", e.Secret, e.Kind, err)
	}
	return nil
}

// notifyChanged calls Changed for each scope of the file grants.
func (k *Manager) notifyChanged(ctx context.Context, grants []*Grant) error {
	notified := map[Scope]bool{}
	var errs []error
	for _, g := range grants {
		if g.Delivery == File && !notified[g.To] {
			notified[g.To] = true
			if err := k.cfg.Changed(ctx, g.To); err != nil {
				errs = append(errs, fmt.Errorf("update the secret files of %s: %w", g.To, err))
			}
		}
	}
	return errors.Join(errs...)
}
