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
	"glasshouse/snapshot"
)

// uptime is what the clock that counts from the host's start shows in a jail.
func (h *house) uptime(jid id.Jail) (d time.Duration) {
	h.t.Helper()
	var seconds float64
	if _, err := fmt.Sscan(h.sh(jid, "cat /proc/uptime"), &seconds); err != nil {
		h.t.Fatal(err)
	}
	return time.Duration(seconds * float64(time.Second))
}

// shifted is the image of clocks as a host would have written it that had run for
// longer or shorter by d.
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

// A host that was started again, or another one, has a clock that began at
// another time. What waits by that clock must not wait for days.
func TestProcessesGoOnWhereTheClockOfTheHostIsAnother(t *testing.T) {
	if _, err := os.Stat("/proc/self/timens_offsets"); err != nil {
		t.Skip("needs time namespaces: ", err)
	}
	here := newHouse(t)
	j := here.running()
	here.behind(j, counter)
	here.behind(j, `mkfifo /tmp/fifo; exec 3<>/tmp/fifo; while :; do read -t 0.05 -u 3 x; date +%s%N > /tmp/turn; done`)
	// A Go program, init, is to end this by its own clock.
	_, limited, err := here.jails.Exec(t.Context(), j, jail.ExecRequest{Argv: []string{"sleep", "1000"}, Timeout: 5 * time.Second}, nil)
	if err != nil {
		t.Fatal(err)
	}
	here.countsOn(j, 3)
	here.until("it waits with a time", func() bool { _, code := here.try(j, "test -s /tmp/turn"); return code == 0 })
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
		there.countsOn(k, there.count(k))
		before := there.sh(k, "cat /tmp/turn")
		there.until("what waits with a time goes on", func() bool { return there.sh(k, "cat /tmp/turn") != before })
		if now, want := there.uptime(k), was+d; now < want || now > want+5*time.Minute {
			t.Errorf("the clock shows %v, and went on from about %v", now, want)
		}
		there.until("the command is ended that had 5 seconds", func() bool {
			st, err := there.jails.ExecStatus(t.Context(), k, limited.ID)
			if err != nil {
				t.Fatal(err)
			}
			return st.Ended != nil && st.TimedOut
		})
		// What was restored can be written down again, and goes on from there.
		again := there.take(k, "")
		l := there.branch(again.ID, 1)[0]
		there.countsOn(l, there.count(l))
		if now, want := there.uptime(l), was+d; now < want || now > want+5*time.Minute {
			t.Errorf("in the branch of the branch the clock shows %v, and went on from about %v", now, want)
		}
	}
}
