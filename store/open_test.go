package store

import (
	"strings"
	"testing"
)

// A failed connection to a database in memory closes the pool, which has a goroutine.
func TestFailedConnectionClosesMemoryDatabase(t *testing.T) {
	s := &Store{process: strings.Repeat("x", 1<<20)} // a longer name than SQLite accepts
	if err := s.connectMemory(); err == nil {
		t.Fatal("connectMemory succeeded with a name that is too long")
	}
	if err := s.write.PingContext(t.Context()); err == nil || !strings.Contains(err.Error(), "database is closed") {
		t.Errorf("a connection after the error: %v, want that the database is closed", err)
	}
}
