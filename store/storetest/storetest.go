// Package storetest creates databases for tests.
package storetest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"glasshouse/store"
)

// Open is like store.Open, but a new SQLite database is a copy of an empty one that is created once
// per process, because creating the schema would dominate the time of many tests. If where is
// empty, the database is a temporary file of the test.
func Open(tb testing.TB, where string) (*store.Store, error) {
	tb.Helper()
	if where == "" {
		where = filepath.Join(tb.TempDir(), "glasshouse.db")
	}
	if err := Create(where); err != nil {
		return nil, err
	}
	return store.Open(tb.Context(), where)
}

// Create creates a SQLite database at path, unless the file exists or path is a PostgreSQL URL. A
// later store.Open does not need to create the schema.
func Create(path string) error {
	if strings.Contains(path, "://") {
		return nil
	}
	data, err := empty()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if os.IsExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// empty returns the content of an empty database.
var empty = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "storetest")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "glasshouse.db")
	s, err := store.Open(context.Background(), path)
	if err != nil {
		return nil, err
	}
	if err := s.Close(); err != nil { // closing copies the write-ahead log into the file
		return nil, err
	}
	return os.ReadFile(path)
})
