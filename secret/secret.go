// Package secret keeps values that nobody is to see: sealed on the disk, fetched
// from where others keep them, and given only to who was granted them.
//
// A value exists in the clear as a Value alone, which does not print. What is
// recorded of secrets, returned of them and said in errors about them is names.
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
	// MaxValue bounds the bytes of a secret.
	MaxValue = 64 << 10

	maxSecrets = 10_000
	maxGrants  = 100_000

	// usedEvery is how often a new time of last use is written down.
	usedEvery = time.Minute
)

// Record is a secret as the store has it.
type Record struct {
	Name     string
	Provider string // Local, or who is asked for it each time
	Path     string // of another provider: where it has it
	Sealed   string // of Local: the value, encrypted
	Created  time.Time
	Updated  time.Time
	Used     *time.Time
	Own      *Own // if it is somebody's alone, which is part of its name; nil: the daemon's
}

// Local is the provider of values that are kept sealed here.
const Local = "local"

// A Store keeps secrets and grants. What it returned from outlives a power cut.
type Store interface {
	Secrets(ctx context.Context) ([]Record, error)
	PutSecret(ctx context.Context, r Record) error
	Reseal(ctx context.Context, sealed map[string]string) error // all or none, by name
	Grants(ctx context.Context) ([]Grant, error)
	PutGrant(ctx context.Context, g Grant) error
	DeleteGrants(ctx context.Context, ids []id.Grant) error

	// DeleteSecret deletes a secret and, at once, its grants.
	DeleteSecret(ctx context.Context, name string) error
}

// A Provider is asked for values that others keep. An error never has any of the
// value in it.
type Provider interface {
	// Check refuses a path under which the provider can have nothing.
	Check(path string) error

	// Fetch returns a value, whose bytes are the caller's to overwrite.
	Fetch(ctx context.Context, path string) ([]byte, error)
}

// A Recorder is told what happens to secrets, before it does. What it cannot
// record does not happen, save for what takes a secret away from somebody.
type Recorder interface {
	Record(ctx context.Context, e Event) error
}

// Config is what a Keeper needs. Fields without a default must be set.
type Config struct {
	Store      Store
	Recorder   Recorder
	KeyFile    string              // made at the first start, 0600
	Passphrase []byte              // protects the key file; empty: nothing but its mode does
	Providers  map[string]Provider // by the word before the colon in a reference
	Log        *slog.Logger

	// Changed is called when those that a scope covers are to have other files
	// than they had, and returns when they have. It may ask for them. Its error is
	// that of who made the change, which stands.
	Changed func(ctx context.Context, s Scope) error
}

// A Keeper keeps secrets. It is safe for concurrent use.
type Keeper struct {
	cfg    Config
	cancel context.CancelFunc
	wg     sync.WaitGroup
	nudge  chan struct{} // an expiry may have come nearer
	past   *past         // set by Open
	given  given

	change sync.Mutex // held while secrets, grants or the key are changed; taken before mu

	mu sync.RWMutex
	// +checklocks:mu
	keys *keyring
	// +checklocks:mu
	secrets map[string]*Record
	// +checklocks:mu
	grants map[id.Grant]*Grant
}

// NewKeeper returns a Keeper that has touched nothing yet.
func NewKeeper(cfg Config) *Keeper {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Changed == nil {
		cfg.Changed = func(context.Context, Scope) error { return nil }
	}
	return &Keeper{cfg: cfg, nudge: make(chan struct{}, 1), secrets: map[string]*Record{}, grants: map[id.Grant]*Grant{}}
}

// Open reads what is kept, and finishes a change of the key that was interrupted.
func (k *Keeper) Open(ctx context.Context) error {
	secrets, err := k.cfg.Store.Secrets(ctx)
	if err != nil {
		return err
	}
	grants, err := k.cfg.Store.Grants(ctx)
	if err != nil {
		return err
	}
	k.mu.Lock()
	sealed := false
	for _, r := range secrets {
		k.secrets[r.Name] = &r
		sealed = sealed || r.Provider == Local
	}
	for _, g := range grants {
		k.grants[g.ID] = &g
	}
	k.mu.Unlock()
	k.past, err = newPast()
	if err != nil {
		return fmt.Errorf("make a key for earlier values: %w", err)
	}
	keys, err := openKeys(k.cfg.KeyFile, k.cfg.Passphrase, !sealed)
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.keys = keys
	k.mu.Unlock()
	if len(keys.ids) > 1 {
		if err := k.takeOver(ctx); err != nil {
			return fmt.Errorf("finish the change of the key: %w", err)
		}
	}
	ctx, k.cancel = context.WithCancel(context.WithoutCancel(ctx))
	k.wg.Go(func() { k.expireLoop(ctx) })
	return nil
}

// Close ends the Keeper's own work. It may be called twice, and without Open.
func (k *Keeper) Close() error {
	if k.cancel != nil {
		k.cancel()
		k.wg.Wait()
	}
	return nil
}

var nameForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]{0,127}$`)

func checkName(op, name string) error {
	if !nameForm.MatchString(name) {
		return fault.Fieldf(op, "name", "%.140q is not a name: a letter or _, then letters, digits, _ . -, 128 in all", name)
	}
	return nil
}

// Put seals a value under a name, in place of what was there. It takes over b,
// which is zeroed.
func (k *Keeper) Put(ctx context.Context, name string, b []byte, by string) error {
	const op = "secret.Put"
	defer clear(b)
	if err := checkName(op, name); err != nil {
		return err
	}
	if err := checkValue(op, name, b); err != nil {
		return err
	}
	return k.put(ctx, op, by, func() (Record, error) {
		sealed, err := k.ring().seal(name, b)
		return Record{Name: name, Provider: Local, Sealed: sealed}, err
	})
}

func checkValue(op, name string, b []byte) error {
	if len(b) > MaxValue {
		return fault.Newf(fault.TooLarge, op, name, "%d bytes are over the maximum of %d", len(b), MaxValue)
	}
	if len(b) == 0 {
		return fault.Fieldf(op, "value", "the value is empty")
	}
	return nil
}

// PutReference has a provider asked for the secret each time it is used:
// "vault:kv/data/app#key".
func (k *Keeper) PutReference(ctx context.Context, name, reference, by string) error {
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
		return fault.Fieldf(op, "reference", "no provider %.40q is configured; there is %s", provider, strings.Join(slices.Sorted(maps.Keys(k.cfg.Providers)), ", "))
	}
	if err := p.Check(path); err != nil {
		return fault.Fieldf(op, "reference", "%w", err)
	}
	return k.put(ctx, op, by, func() (Record, error) { return Record{Name: name, Provider: provider, Path: path}, nil })
}

func (k *Keeper) ring() *keyring {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.keys
}

func (k *Keeper) put(ctx context.Context, op, by string, make func() (Record, error)) error {
	k.change.Lock()
	r, err := make()
	if err == nil {
		err = k.replace(ctx, op, by, r)
	}
	k.change.Unlock()
	if err != nil {
		return err
	}
	return k.changed(ctx, k.grantsOf(r.Name))
}

// replace records a secret, new or changed. The caller holds change.
func (k *Keeper) replace(ctx context.Context, op, by string, r Record) error {
	now := time.Now()
	r.Created, r.Updated = now, now
	k.mu.RLock()
	was, count := k.secrets[r.Name], len(k.secrets)
	if was != nil {
		r.Created, r.Used = was.Created, was.Used
	}
	k.mu.RUnlock()
	if was == nil && count >= maxSecrets {
		return fault.Newf(fault.Exhausted, op, r.Name, "there are %d secrets already", count)
	}
	if err := k.record(ctx, Event{Kind: Stored, Secret: r.Name, Provider: r.Provider, By: by}); err != nil {
		return err
	}
	if err := k.cfg.Store.PutSecret(ctx, r); err != nil {
		return err
	}
	k.outlive(was)
	k.mu.Lock()
	k.secrets[r.Name] = &r
	k.mu.Unlock()
	return nil
}

// Delete forgets a secret and every grant of it.
func (k *Keeper) Delete(ctx context.Context, name, by string) error {
	return k.remove(ctx, by, func() (*Record, error) {
		k.mu.RLock()
		defer k.mu.RUnlock()
		if r := k.secrets[name]; r != nil {
			return r, nil
		}
		return nil, fault.Newf(fault.NotFound, "secret.Delete", name, "no such secret")
	})
}

// remove forgets the secret that which returns, while nobody changes any.
func (k *Keeper) remove(ctx context.Context, by string, which func() (*Record, error)) error {
	k.change.Lock()
	r, err := which()
	if err != nil {
		k.change.Unlock()
		return err
	}
	name := r.Name
	grants := k.grantsOf(name)
	if err := k.cfg.Store.DeleteSecret(ctx, name); err != nil {
		k.change.Unlock()
		return err
	}
	k.outlive(r)
	k.mu.Lock()
	delete(k.secrets, name)
	for _, g := range grants {
		delete(k.grants, g.ID)
	}
	k.mu.Unlock()
	k.change.Unlock()
	err = k.record(ctx, Event{Kind: Deleted, Secret: name, Provider: r.Provider, By: by})
	for _, g := range grants {
		err = errors.Join(err, k.record(ctx, ended(g, Revoked, by, "the secret was deleted")))
	}
	return errors.Join(err, k.changed(ctx, grants))
}

// Info is what may be told of a secret.
type Info struct {
	Name     string     `json:"name"`
	Owner    string     `json:"owner,omitempty"` // whose it is alone
	Provider string     `json:"provider"`
	Path     string     `json:"path,omitempty"` // at the provider
	Created  time.Time  `json:"created"`
	Updated  time.Time  `json:"updated"`
	Used     *time.Time `json:"used,omitempty"`
	Grants   []Grant    `json:"grants"` // oldest first
}

// List returns what may be told of all secrets, by name.
func (k *Keeper) List() []Info {
	k.mu.RLock()
	defer k.mu.RUnlock()
	list := make([]Info, 0, len(k.secrets))
	at := map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(k.secrets)) {
		r := k.secrets[name]
		at[name] = len(list)
		info := Info{Name: r.Name, Provider: r.Provider, Path: r.Path, Created: r.Created, Updated: r.Updated, Used: r.Used, Grants: []Grant{}}
		if r.Own != nil {
			info.Owner = r.Own.Owner
		}
		list = append(list, info)
	}
	for _, g := range k.grants {
		i := at[g.Secret]
		list[i].Grants = append(list[i].Grants, *g)
	}
	for _, info := range list {
		slices.SortFunc(info.Grants, func(a, b Grant) int { return a.Created.Compare(b.Created) })
	}
	return list
}

// Rotate seals every value with a new key, and destroys the one before. If it is
// interrupted, the next Open finishes it.
func (k *Keeper) Rotate(ctx context.Context, by string) error {
	k.change.Lock()
	defer k.change.Unlock()
	next, err := k.ring().withNew()
	if err != nil {
		return err
	}
	if err := k.record(ctx, Event{Kind: Rotated, By: by}); err != nil {
		return err
	}
	// Both keys are in the file before anything is sealed with the new one, and
	// until everything is.
	if err := next.write(); err != nil {
		return err
	}
	k.mu.Lock()
	k.keys = next
	k.mu.Unlock()
	return k.takeOver(ctx)
}

// takeOver seals with the newest key what was sealed with another, and forgets
// the others. The caller holds change, or is alone.
func (k *Keeper) takeOver(ctx context.Context) error {
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
		return err
	}
	k.mu.Lock()
	k.keys = &last
	k.mu.Unlock()
	return nil
}

// fetch returns a secret's value. keys are those that were there when r was.
func (k *Keeper) fetch(ctx context.Context, r *Record, keys *keyring) (Value, error) {
	if r.Provider == Local {
		return keys.open(r.Name, r.Sealed, false)
	}
	const op = "secret.Fetch"
	p := k.cfg.Providers[r.Provider]
	if p == nil {
		return Value{}, fault.Newf(fault.Unavailable, op, r.Name, "the provider %s is not configured any more", r.Provider)
	}
	b, err := p.Fetch(ctx, r.Path)
	if err != nil {
		return Value{}, fmt.Errorf("fetch secret %s from %s: %w", r.Name, r.Provider, err)
	}
	if len(b) == 0 || len(b) > MaxValue {
		clear(b)
		return Value{}, fault.Newf(fault.Unavailable, op, r.Name, "what %s has under it is empty, or over %d bytes", r.Provider, MaxValue)
	}
	v := NewValue(r.Name, b)
	if err := k.past.add(v); err != nil {
		v.Zero()
		return Value{}, err
	}
	return v, nil
}

func (k *Keeper) record(ctx context.Context, e Event) error {
	e.Time = time.Now()
	if err := k.cfg.Recorder.Record(ctx, e); err != nil {
		return fmt.Errorf("record that secret %s was %s: %w", e.Secret, e.Kind, err)
	}
	return nil
}

// changed tells of the scopes whose files are others now.
func (k *Keeper) changed(ctx context.Context, grants []*Grant) error {
	told := map[Scope]bool{}
	var errs []error
	for _, g := range grants {
		if g.Delivery == File && !told[g.To] {
			told[g.To] = true
			if err := k.cfg.Changed(ctx, g.To); err != nil {
				errs = append(errs, fmt.Errorf("the files of %s are not yet as they are to be: %w", g.To, err))
			}
		}
	}
	return errors.Join(errs...)
}
