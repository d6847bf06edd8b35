package store_test

import (
	"database/sql"
	"testing"
	"time"

	"glasshouse/store/postgrestest"
)

// A daemon that hangs in a transaction does not stop the others, which need its lock.
func TestTransactionOfHungDaemonEnds(t *testing.T) {
	where := postgrestest.Start(t).URL(t)
	a, b := open(t, where+"&idle_in_transaction_session_timeout=300"), open(t, where)
	var limit string
	if err := b.Update(t.Context(), func(tx *sql.Tx) error {
		return tx.QueryRowContext(t.Context(), "SHOW idle_in_transaction_session_timeout").Scan(&limit)
	}); err != nil || limit != "10s" {
		t.Errorf("a transaction may wait for its daemon for %q, %v, want 10 s", limit, err)
	}
	locked, hang := make(chan struct{}), make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- a.Update(t.Context(), func(*sql.Tx) error {
			close(locked)
			<-hang
			return nil
		})
	}()
	<-locked
	began := time.Now()
	if err := b.Update(t.Context(), func(*sql.Tx) error { return nil }); err != nil {
		t.Errorf("the update of another daemon: %v", err)
	}
	if waited := time.Since(began); waited < 100*time.Millisecond {
		t.Errorf("the other daemon waited %v, want until the first transaction was ended", waited)
	}
	close(hang)
	if err := <-ended; err == nil {
		t.Error("the transaction of the hung daemon was committed")
	}
	// Its next transaction has a new connection.
	if err := a.Update(t.Context(), func(*sql.Tx) error { return nil }); err != nil {
		t.Errorf("the next update of the first daemon: %v", err)
	}
}
