package secret_test

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"glasshouse/id"
	"glasshouse/policy/secret"
)

// memoryStore is a Store in memory that can fail. It has no goroutines, as synctest requires.
type memoryStore struct {
	mu      sync.Mutex
	err     error
	secrets map[string]secret.Record
	grants  map[id.Grant]secret.Grant
}

func newMemoryStore() *memoryStore {
	return &memoryStore{secrets: map[string]secret.Record{}, grants: map[id.Grant]secret.Grant{}}
}

func (m *memoryStore) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

// do runs change unless the store fails.
func (m *memoryStore) do(change func()) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	change()
	return nil
}

func (m *memoryStore) Secrets(context.Context) (list []secret.Record, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.secrets)), nil
}

func (m *memoryStore) Grants(context.Context) (list []secret.Grant, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.grants)), nil
}

func (m *memoryStore) PutSecret(_ context.Context, r secret.Record) error {
	return m.do(func() { m.secrets[r.Name] = r })
}

func (m *memoryStore) Used(_ context.Context, name string, at time.Time) error {
	return m.do(func() {
		r := m.secrets[name]
		r.Used = &at
		m.secrets[name] = r
	})
}

func (m *memoryStore) PutGrant(_ context.Context, g secret.Grant) error {
	return m.do(func() { m.grants[g.ID] = g })
}

func (m *memoryStore) DeleteGrants(_ context.Context, ids []id.Grant) error {
	return m.do(func() {
		for _, g := range ids {
			delete(m.grants, g)
		}
	})
}

func (m *memoryStore) DeleteSecret(_ context.Context, name string) error {
	return m.do(func() {
		delete(m.secrets, name)
		maps.DeleteFunc(m.grants, func(_ id.Grant, g secret.Grant) bool { return g.Secret == name })
	})
}

func (m *memoryStore) Reseal(_ context.Context, sealed map[string]string) error {
	return m.do(func() {
		for name, s := range sealed {
			r := m.secrets[name]
			r.Sealed = s
			m.secrets[name] = r
		}
	})
}
