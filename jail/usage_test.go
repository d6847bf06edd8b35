package jail_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

// A counter of the kernel's begins at 0 with each body of a jail.
func TestWhatAJailHasUsedIsCountedOverItsBodiesAndDaemons(t *testing.T) {
	w := newWorld(t)
	var body atomic.Int64 // seconds that the present body has used
	w.backend.counts = func(jail.Plan) jail.Stats {
		n := body.Load()
		return jail.Stats{CPU: time.Duration(n) * time.Second, RxBytes: 10 * n, TxBytes: n, DiskBytes: 7}
	}
	m := w.manager()
	j := w.running(m)
	used := func(want int64) {
		t.Helper()
		u, err := m.Usage(t.Context(), j.ID)
		if err != nil || u.CPU != time.Duration(want)*time.Second || u.RxBytes != 10*want || u.TxBytes != want {
			t.Fatalf("it has used %+v, %v; want %d seconds", u, err, want)
		}
	}
	stop := func() {
		t.Helper()
		if _, err := m.Stop(t.Context(), j.ID, jail.StopOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	start := func() {
		t.Helper()
		body.Store(0)
		if _, err := m.Start(t.Context(), j.ID); err != nil {
			t.Fatal(err)
		}
	}
	body.Store(5)
	used(5)
	stop()
	used(5)
	start()
	used(5)
	body.Store(3)
	used(8)

	// A daemon goes, and another comes.
	m.Close()
	m = w.manager()
	used(8)

	// The jail ends while there is none.
	m.Close()
	body.Store(4)
	syscall.Kill(w.pid(j.ID), syscall.SIGKILL)
	for alive(w.pid(j.ID)) {
		time.Sleep(time.Millisecond)
	}
	m = w.manager()
	used(9)

	// A daemon dies when it has counted and not yet removed what it counted.
	start()
	body.Store(2)
	w.backend.stuck.Store(true)
	if _, err := m.Stop(t.Context(), j.ID, jail.StopOptions{}); err == nil {
		t.Fatal("it stopped, though it is stuck")
	}
	used(11)
	m.Close()
	w.backend.stuck.Store(false)
	m = w.manager()
	used(11)
	start()
	used(11)
	if u, err := m.Usage(t.Context(), j.ID); err != nil || u.DiskBytes != 7 {
		t.Errorf("on its disk are %d bytes, %v, want 7", u.DiskBytes, err)
	}
	if _, err := m.Usage(t.Context(), "j-none"); !errors.Is(err, fault.NotFound) {
		t.Errorf("of no jail: %v", err)
	}
}

// pid is the init of a jail.
func (w *world) pid(j id.Jail) int {
	w.Helper()
	data, err := os.ReadFile(filepath.Join(w.dir, "jails", string(j), "pid"))
	if err != nil {
		w.Fatal(err)
	}
	n, err := strconv.Atoi(string(data))
	if err != nil {
		w.Fatal(err)
	}
	return n
}
