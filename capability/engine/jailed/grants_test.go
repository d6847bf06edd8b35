package jailed_test

import (
	"context"
	"slices"
	"strings"
	"sync"

	"glasshouse/capability/rtfs/form"
	"glasshouse/id"
	"glasshouse/jail"
)

// grants holds the secrets of jails. It implements jail.Secrets.
type grants struct {
	mu sync.Mutex
	// +checklocks:mu
	all map[id.Jail][]jail.Secret
}

func (g *grants) give(jid id.Jail, name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all[jid] = append(g.all[jid], value{name})
}

func (g *grants) Granted(_ context.Context, jid id.Jail) ([]jail.Secret, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.all[jid]), nil
}

func (g *grants) CopyGrantsToBranch(context.Context, id.Jail, id.Jail) error { return nil }

func (g *grants) JailDeleted(_ context.Context, jid id.Jail) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.all, jid)
	return nil
}

type value struct{ name string }

func (v value) Name() string  { return v.name }
func (v value) Bytes() []byte { return []byte("the value of " + v.name) }
func (v value) Zero()         {}

// words joins a vector of strings.
func words(v any) string {
	var all []string
	for _, s := range v.(form.Vector) {
		all = append(all, s.(string))
	}
	return strings.Join(all, " ")
}
