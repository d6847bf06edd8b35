// Package storetest makes databases for tests.
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

// Open is store.Open, but a new SQLite database is a copy of one that was made once:
// many tests would spend most of their time on making the schema. If where is empty, the
// database is a file that the test removes.
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

// Create makes a SQLite database at path, unless one is there or path is the URL of a
// PostgreSQL. store.Open has little to do then.
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

// empty is a database without rows.
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
	if err := s.Close(); err != nil { // which copies the write-ahead log into the file
		return nil, err
	}
	return os.ReadFile(path)
})
