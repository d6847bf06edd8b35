package snapshot_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/timens"
	"google.golang.org/protobuf/proto"

	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

// uptime returns the value of the boot-time clock in a jail.
func (h *harness) uptime(jid id.Jail) (d time.Duration) {
	h.t.Helper()
	var seconds float64
	if _, err := fmt.Sscan(h.sh(jid, "cat /proc/uptime"), &seconds); err != nil {
		h.t.Fatal(err)
	}
	return time.Duration(seconds * float64(time.Second))
}

// shifted returns the timens image of a host with an uptime that differs by d.
func shifted(t *testing.T, image []byte, d time.Duration) []byte {
	t.Helper()
	const header = 8
	n := binary.LittleEndian.Uint32(image[header:])
	var e timens.TimensEntry
	if err := proto.Unmarshal(image[header+4:header+4+n], &e); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*timens.Timespec{e.Monotonic, e.Boottime} {
		seconds := uint64(int64(c.GetTvSec()) + int64(d/time.Second))
		c.TvSec = &seconds
	}
	b, err := proto.Marshal(&e)
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.LittleEndian.AppendUint32(bytes.Clone(image[:header]), uint32(len(b))), b...)
}

// The monotonic clock of a rebooted or different host has another origin. Restored processes
// that wait for a time on that clock must not wait for days.
func TestRestoreWithDifferentHostClock(t *testing.T) {
	if _, err := os.Stat("/proc/self/timens_offsets"); err != nil {
		t.Skip("needs time namespaces: ", err)
	}
	here := newHarness(t)
	j := here.running()
	here.background(j, counter)
	here.background(j, `mkfifo /tmp/fifo; exec bash -c 'exec 3<>/tmp/fifo; while :; do read -t 0.05 -u 3; (($? > 128)) && date +%s%N > /tmp/turn; done'`)
	// Init, a Go program, ends this command by its own clock.
	_, limited, err := here.jails.Exec(t.Context(), j, jail.ExecRequest{Argv: []string{"sleep", "1000"}, Timeout: 5 * time.Second}, nil)
	if err != nil {
		t.Fatal(err)
	}
	here.checkCounting(j, 3)
	here.waitFor("the process waits with a timeout", func() bool { _, code := here.try(j, "test -s /tmp/turn"); return code == 0 })
	was := here.uptime(j)
	archive := here.export(here.take(j, "").ID)

	there := newHost(t)
	for _, d := range []time.Duration{240 * time.Hour, -was / 2} {
		other := edited(t, archive, "memory/timens-0.img", func(b []byte) []byte { return shifted(t, b, d) })
		s, err := there.keeper.Import(t.Context(), bytes.NewReader(other), snapshot.ImportOptions{})
		if err != nil {
			t.Fatal(err)
		}
		k := there.branch(s.ID, 1)[0]
		there.checkCounting(k, there.count(k))
		before := there.sh(k, "cat /tmp/turn")
		there.waitFor("the process with a timeout continued", func() bool { return there.sh(k, "cat /tmp/turn") != before })
		if now, want := there.uptime(k), was+d; now < want || now > want+5*time.Minute {
			t.Errorf("the clock shows %v, want about %v", now, want)
		}
		there.waitFor("the command with a timeout of 5 seconds ended", func() bool {
			st, err := there.jails.ExecStatus(t.Context(), k, limited.ID)
			if err != nil {
				t.Fatal(err)
			}
			return st.Ended != nil && st.TimedOut
		})
		// A restored jail can be snapshotted and restored again.
		again := there.take(k, "")
		l := there.branch(again.ID, 1)[0]
		there.checkCounting(l, there.count(l))
		if now, want := there.uptime(l), was+d; now < want || now > want+5*time.Minute {
			t.Errorf("the clock in the branch of the branch shows %v, want about %v", now, want)
		}
	}
}
