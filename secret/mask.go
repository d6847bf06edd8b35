package secret

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"slices"
	"sync"

	"filippo.io/age"

	"glasshouse/id"
	"glasshouse/internal/redact"
)

// Mask returns a mask for the values that who has or had in this daemon's life, by its
// grants or as part of names, and nil if there are none. It covers the values that a
// secret had before it was changed, revoked or deleted: a program may still have those in
// memory. A value shorter than redact.MinLength is not masked.
//
// Mask asks no provider: of a secret that another provider keeps, the values that this
// daemon has fetched are masked.
func (k *Keeper) Mask(ctx context.Context, who Scope, names []string) *redact.Mask {
	return k.MaskAll(ctx, []Scope{who}, names)
}

// MaskAll is Mask for several.
func (k *Keeper) MaskAll(ctx context.Context, all []Scope, names []string) *redact.Mask {
	names = slices.Clone(names)
	for _, who := range all {
		names = append(names, k.given.names(who.Jail)...)
		for _, g := range k.where(func(g *Grant) bool { return g.To.covers(who) }) {
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
			k.cfg.Log.Error("the value of a secret cannot be masked: it cannot be opened", "secret", name, "err", err)
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
		for _, sealed := range k.past.sealed(name) {
			v, err := k.past.keys.open(name, sealed, false)
			add(v, name, err)
		}
	}
	return redact.New(values...)
}

// outlive keeps the value of a local secret that is about to be replaced or deleted.
func (k *Keeper) outlive(r *Record) {
	if r == nil || r.Provider != Local {
		return
	}
	v, err := k.ring().open(r.Name, r.Sealed, false)
	if err == nil {
		err = k.past.add(v)
		v.Zero()
	}
	if err != nil {
		k.cfg.Log.Error("the earlier value of a secret will not be masked", "secret", r.Name, "err", err)
	}
}

// maxPast bounds how many values of one secret, and maxPastNames of how many secrets,
// a past keeps.
const (
	maxPast      = 8
	maxPastNames = 2 * maxSecrets
)

// A past keeps values that programs may have and the database does not: earlier values,
// and values that other providers keep. They are encrypted with a key in memory, so that
// no value lies in the clear where it is not used.
type past struct {
	keys *keyring
	mac  []byte // key of the digests by which a value is known again

	mu sync.Mutex
	// +checklocks:mu
	values map[string][]pastValue // by name, oldest first
}

type pastValue struct {
	digest [sha256.Size]byte
	sealed string
}

func newPast() (*past, error) {
	key, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, err
	}
	p := &past{keys: &keyring{ids: []*age.X25519Identity{key}}, mac: make([]byte, sha256.Size), values: map[string][]pastValue{}}
	rand.Read(p.mac)
	return p, nil
}

// add keeps a value, which stays the caller's.
func (p *past) add(v Value) error {
	h := hmac.New(sha256.New, p.mac)
	h.Write(v.Bytes())
	digest := [sha256.Size]byte(h.Sum(nil))
	p.mu.Lock()
	defer p.mu.Unlock()
	have := p.values[v.Name()]
	if slices.ContainsFunc(have, func(o pastValue) bool { return o.digest == digest }) || have == nil && len(p.values) >= maxPastNames {
		return nil
	}
	sealed, err := p.keys.seal(v.Name(), v.Bytes())
	if err != nil {
		return err
	}
	have = append(have, pastValue{digest, sealed})
	p.values[v.Name()] = have[max(0, len(have)-maxPast):]
	return nil
}

func (p *past) sealed(name string) (all []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, v := range p.values[name] {
		all = append(all, v.sealed)
	}
	return all
}

// given are the names of secrets that jails have had in this daemon's life.
type given struct {
	mu sync.Mutex
	// +checklocks:mu
	to map[id.Jail]map[string]bool
}

func (g *given) add(jid id.Jail, names ...string) {
	if jid == "" || len(names) == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.to == nil {
		g.to = map[id.Jail]map[string]bool{}
	}
	if g.to[jid] == nil {
		g.to[jid] = map[string]bool{}
	}
	for _, name := range names {
		g.to[jid][name] = true
	}
}

func (g *given) names(jid id.Jail) (all []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name := range g.to[jid] {
		all = append(all, name)
	}
	return all
}

func (g *given) forget(jid id.Jail) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.to, jid)
}
