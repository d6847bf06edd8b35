package secret_test

import (
	"context"
	"maps"
	"slices"
	"sync"

	"glasshouse/id"
	"glasshouse/secret"
)

// memory is a store that can fail, and needs no goroutine of its own.
type memory struct {
	mu      sync.Mutex
	err     error
	secrets map[string]secret.Record
	grants  map[id.Grant]secret.Grant
}

func newMemory() *memory {
	return &memory{secrets: map[string]secret.Record{}, grants: map[id.Grant]secret.Grant{}}
}

func (m *memory) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

// do makes a change unless the store fails.
func (m *memory) do(change func()) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	change()
	return nil
}

func (m *memory) Secrets(context.Context) (list []secret.Record, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.secrets)), nil
}

func (m *memory) Grants(context.Context) (list []secret.Grant, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.grants)), nil
}

func (m *memory) PutSecret(_ context.Context, r secret.Record) error {
	return m.do(func() { m.secrets[r.Name] = r })
}

func (m *memory) PutGrant(_ context.Context, g secret.Grant) error {
	return m.do(func() { m.grants[g.ID] = g })
}

func (m *memory) DeleteGrants(_ context.Context, ids []id.Grant) error {
	return m.do(func() {
		for _, g := range ids {
			delete(m.grants, g)
		}
	})
}

func (m *memory) DeleteSecret(_ context.Context, name string) error {
	return m.do(func() {
		delete(m.secrets, name)
		maps.DeleteFunc(m.grants, func(_ id.Grant, g secret.Grant) bool { return g.Secret == name })
	})
}

func (m *memory) Reseal(_ context.Context, sealed map[string]string) error {
	return m.do(func() {
		for name, s := range sealed {
			r := m.secrets[name]
			r.Sealed = s
			m.secrets[name] = r
		}
	})
}
