package secret

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"

	"filippo.io/age"

	"glasshouse/id"
	"glasshouse/internal/redact"
)

// Mask returns a mask for the values that who has or had by grants since the daemon started,
// and for the secrets in names. It returns nil if there are no such secrets. The mask includes
// values that were since replaced, revoked or deleted, because a program may still have them
// in memory. A value shorter than redact.MinLength is not masked.
//
// Mask does not query providers. Of an external secret, it masks the values that this daemon
// has fetched.
func (k *Manager) Mask(ctx context.Context, who Scope, names []string) *redact.Mask {
	return k.MaskAll(ctx, []Scope{who}, names)
}

// MaskAll is like Mask for several scopes.
func (k *Manager) MaskAll(ctx context.Context, all []Scope, names []string) *redact.Mask {
	names = slices.Clone(names)
	for _, who := range all {
		names = append(names, k.delivered.names(who.Jail)...)
		for _, g := range k.findGrants(func(g *Grant) bool { return g.To.covers(who) }) {
			names = append(names, g.Secret)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	var values []string
	add := func(v Value, name string, err error) {
		if err != nil {
			k.cfg.Log.Error("could not decrypt a secret for masking: its value is not masked", "secret", name, "err", err)
			return
		}
		if len(v.Bytes()) >= redact.MinLength {
			values = append(values, string(v.Bytes()))
		}
		v.Zero()
	}
	for _, name := range slices.Compact(names) {
		k.mu.RLock()
		r, keys := k.secrets[name], k.keys
		k.mu.RUnlock()
		if r != nil && r.Provider == Local {
			v, err := keys.open(r.Name, r.Sealed, false)
			add(v, name, err)
		}
		for _, sealed := range k.history.sealed(name) {
			v, err := k.history.keys.open(name, sealed, false)
			add(v, name, err)
		}
	}
	return redact.New(values...)
}

// keepOldValue adds the value of a local secret to the history before it is replaced or
// deleted.
func (k *Manager) keepOldValue(r *Record) {
	if r == nil || r.Provider != Local {
		return
	}
	v, err := k.currentKeys().open(r.Name, r.Sealed, false)
	if err == nil {
		err = k.history.add(v)
		v.Zero()
	}
	if err != nil {
		k.cfg.Log.Error("could not keep the old value of a secret: it will not be masked", "secret", r.Name, "err", err)
	}
}

// maxHistory is the maximum number of values per secret in a valueHistory, and maxHistoryNames
// the maximum number of secrets.
const (
	maxHistory      = 8
	maxHistoryNames = 2 * maxSecrets
)

// A valueHistory keeps values that programs may have and the database does not: old values,
// and values of external providers. They are encrypted with a key in memory, so that memory
// holds no plaintext that is not in use.
type valueHistory struct {
	keys *keyring
	mac  []byte // HMAC key of the digests that detect duplicates

	mu sync.Mutex
	// +checklocks:mu
	values map[string][]historyValue // by name, oldest first
}

type historyValue struct {
	digest [sha256.Size]byte
	sealed string
}

func newValueHistory() (*valueHistory, error) {
	key, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, err
	}
	p := &valueHistory{keys: &keyring{ids: []*age.X25519Identity{key}}, mac: make([]byte, sha256.Size), values: map[string][]historyValue{}}
	rand.Read(p.mac)
	return p, nil
}

// add adds a value. The caller still owns v.
func (p *valueHistory) add(v Value) error {
	h := hmac.New(sha256.New, p.mac)
	h.Write(v.Bytes())
	digest := [sha256.Size]byte(h.Sum(nil))
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.values[v.Name()]
	if slices.ContainsFunc(known, func(o historyValue) bool { return o.digest == digest }) || known == nil && len(p.values) >= maxHistoryNames {
		return nil
	}
	sealed, err := p.keys.seal(v.Name(), v.Bytes())
	if err != nil {
		return fmt.Errorf("add the value to the history: %w", err)
	}
	known = append(known, historyValue{digest, sealed})
	p.values[v.Name()] = known[max(0, len(known)-maxHistory):]
	return nil
}

func (p *valueHistory) sealed(name string) (all []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, v := range p.values[name] {
		all = append(all, v.sealed)
	}
	return all
}

// deliveredNames holds the names of secrets that each jail has received since the daemon
// started.
type deliveredNames struct {
	mu sync.Mutex
	// +checklocks:mu
	byJail map[id.Jail]map[string]bool
}

func (g *deliveredNames) add(jid id.Jail, names ...string) {
	if jid == "" || len(names) == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.byJail == nil {
		g.byJail = map[id.Jail]map[string]bool{}
	}
	if g.byJail[jid] == nil {
		g.byJail[jid] = map[string]bool{}
	}
	for _, name := range names {
		g.byJail[jid][name] = true
	}
}

func (g *deliveredNames) names(jid id.Jail) (all []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name := range g.byJail[jid] {
		all = append(all, name)
	}
	return all
}

func (g *deliveredNames) forget(jid id.Jail) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.byJail, jid)
}
