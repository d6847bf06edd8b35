package daemon

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Changes are read when the daemon is woken, and soon again after an error.
func TestReread(t *testing.T) {
	var log strings.Builder
	d := &Daemon{log: slog.New(slog.NewTextHandler(&log, nil))}
	var calls atomic.Int32
	wake := d.reread("secrets", func(context.Context) error {
		if calls.Add(1) == 2 {
			return errors.New("the database does not answer")
		}
		return nil
	})
	for n, want := range []int32{1, 3, 4} { // the second is repeated
		wake()
		for end := time.Now().Add(10 * time.Second); calls.Load() < want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d calls ten seconds after wakeup %d, want %d", calls.Load(), n+1, want)
			}
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if got := calls.Load(); got != 4 {
		t.Errorf("%d calls, want 4", got)
	}
	if strings.Count(log.String(), "could not read the changes of secrets") != 1 {
		t.Errorf("log = %s, want the error once", &log)
	}
}
