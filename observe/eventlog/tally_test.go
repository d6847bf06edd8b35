package eventlog

import (
	"fmt"
	"io"
	"testing"
	"time"

	"glasshouse/observe/event"
)

// filled returns a log of n records in several closed files, and its tally.
func filled(t testing.TB, n int, filter string) (*Log, *Tally) {
	t.Helper()
	l := open(t, config(t, Policy{SegmentMB: 1}))
	add(t, l, 0, n)
	f, err := event.ParseFilter(filter)
	if err != nil {
		t.Fatal(err)
	}
	if filter == "" {
		f = nil
	}
	tl := l.Tally(f)
	if err := tl.Update(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l, tl
}

func add(t testing.TB, l *Log, from, to int) {
	t.Helper()
	for n := from; n < to; n++ {
		for !l.HasRoom() {
			time.Sleep(time.Millisecond)
		}
		e := sample(n)
		l.Append(&e)
	}
	flush(t, l)
}

// slow returns the records that match filter by reading the whole log.
func slow(t testing.TB, l *Log, filter *event.Filter) (lines []string, events []event.Event) {
	t.Helper()
	c, err := l.Read(t.Context(), Query{Filter: filter})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for {
		var e event.Event
		line, err := c.Next(&e)
		if err == io.EOF {
			return lines, events
		}
		if err != nil {
			t.Fatal(err)
		}
		lines, events = append(lines, string(line)), append(events, e)
	}
}

func TestTallyWindowsMatchSequentialRead(t *testing.T) {
	for _, filter := range []string{"", "type:file", "pid:42 -type:net", "path:/work/out-7.txt", "comm:nobody"} {
		l, tl := filled(t, 12_000, filter)
		want, events := slow(t, l, tl.filter)
		if tl.Total() != int64(len(want)) {
			t.Fatalf("%q: counted %d records, want %d", filter, tl.Total(), len(want))
		}
		for _, at := range []int{0, 1, 255, 256, 257, len(want) / 2, len(want) - 1, len(want), len(want) + 9} {
			if at < 0 {
				continue
			}
			got, err := tl.Window(t.Context(), int64(at), 100)
			if err != nil {
				t.Fatal(err)
			}
			rest := want[min(at, len(want)):]
			rest = rest[:min(100, len(rest))]
			if fmt.Sprintf("%s", got) != fmt.Sprintf("%s", rest) {
				t.Errorf("%q: the window at %d has %d lines, which differ from the %d expected ones", filter, at, len(got), len(rest))
			}
		}
		for _, i := range []int{0, 1, 300, len(events) - 1} {
			if i < 0 || i >= len(events) {
				continue
			}
			if n, err := tl.Offset(t.Context(), time.UnixMilli(events[i].TS)); err != nil || n != int64(i) {
				t.Errorf("%q: Offset of the time of record %d = %d (%v)", filter, i, n, err)
			}
		}
		if n, err := tl.Offset(t.Context(), time.UnixMilli(1<<50)); err != nil || n != int64(len(want)) {
			t.Errorf("%q: Offset of a time after the end = %d (%v), want %d", filter, n, err, len(want))
		}
	}
}

// Filters that are evaluated without parsing give the same result as with parsing.
func TestTallyFiltersWithoutParsing(t *testing.T) {
	l := open(t, config(t, Policy{SegmentMB: 1}))
	add(t, l, 0, 6000)
	for _, e := range []event.Event{
		{Type: event.Gap, Source: event.File, Lost: 3, Reason: `overload of "pid":42`},
		{Type: event.Usage, CPU: 1},
		{Type: event.Net, Dir: event.Ingress, Proto: "tcp", Src: "93.184.216.34:443", Dst: "10.0.0.2:54321"}, // without a process
		{Type: event.File, PID: 43, TID: 43, HostPID: 42, Op: event.OpWrite, Path: `/work/"pid":42`},
	} {
		e.TS = 1_700_000_100_000
		l.Append(&e)
	}
	add(t, l, 6000, 9000)
	for _, text := range []string{"-pid:42", "type:gap"} {
		f, err := event.ParseFilter(text)
		if err != nil {
			t.Fatal(err)
		}
		want, _ := slow(t, l, f)
		tl := l.Tally(f)
		if err := tl.Update(t.Context()); err != nil {
			t.Fatal(err)
		}
		got, err := tl.Window(t.Context(), 0, len(want)+1)
		if err != nil {
			t.Fatal(err)
		}
		if tl.Total() != int64(len(want)) || fmt.Sprintf("%s", got) != fmt.Sprintf("%s", want) {
			t.Errorf("%s: counted %d records and %d in the window, want %d as in a sequential read", text, tl.Total(), len(got), len(want))
		}
	}
}

func TestTallyCountsLaterRecords(t *testing.T) {
	l, tl := filled(t, 1000, "type:file")
	add(t, l, 1000, 3000)
	if err := tl.Update(t.Context()); err != nil {
		t.Fatal(err)
	}
	want, _ := slow(t, l, tl.filter)
	if tl.Total() != int64(len(want)) {
		t.Errorf("counted %d records, want %d", tl.Total(), len(want))
	}
	got, err := tl.Window(t.Context(), tl.Total()-1, 10)
	if err != nil || len(got) != 1 || string(got[0]) != want[len(want)-1] {
		t.Errorf("last record = %s (%v)", got, err)
	}
}

func TestTallyAfterRetention(t *testing.T) {
	l := open(t, config(t, Policy{SegmentMB: 1, KeepMB: 1, Plain: true}))
	tl := l.Tally(nil)
	for n := 0; n < 40_000; n += 5_000 {
		add(t, l, n, n+5_000)
		settle(t, l)
		if err := tl.Update(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var want []string
	for range 500 { // the gap about the dropped segment is written a moment later
		want, _ = slow(t, l, nil)
		if err := tl.Update(t.Context()); err != nil {
			t.Fatal(err)
		}
		if tl.Total() == int64(len(want)) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if tl.Total() != int64(len(want)) || len(want) == 40_000 {
		t.Fatalf("counted %d records, want the %d stored ones", tl.Total(), len(want))
	}
	if got, err := tl.Window(t.Context(), 0, 1); err != nil || string(got[0]) != want[0] {
		t.Errorf("first record = %s (%v), want %s", got, err, want[0])
	}
}

func TestTimelineCountsEachRecordOnce(t *testing.T) {
	l, tl := filled(t, 50_000, "")
	_, events := slow(t, l, nil)
	for _, part := range []struct {
		from, to time.Time
		buckets  int
	}{
		{buckets: 200},
		{buckets: 1},
		{from: time.UnixMilli(events[10_000].TS), to: time.UnixMilli(events[10_300].TS), buckets: 300},
		{from: time.UnixMilli(events[100].TS), to: time.UnixMilli(events[40_000].TS), buckets: 100},
	} {
		got, err := tl.Timeline(t.Context(), part.from, part.to, part.buckets, 3)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(got.All); n > 2*part.buckets+1 {
			t.Errorf("got %d buckets, want about %d", n, part.buckets)
		}
		want := make([]Counts, len(got.All))
		lanes := map[int32]int{}
		for _, e := range events {
			at := time.UnixMilli(e.TS)
			if i := int(at.Sub(got.From) / got.Width); !at.Before(got.From) && i < len(want) && (part.to.IsZero() || !at.After(part.to)) {
				want[i][kindOf[e.Type]]++
				lanes[e.PID]++
			}
		}
		for i := range want {
			if got.All[i] != want[i] && (part.from.IsZero() || got.Width < 8*time.Millisecond) {
				t.Fatalf("%+v: bucket %d = %v, want %v", part, i, got.All[i], want[i])
			}
		}
		for _, lane := range got.Lanes {
			n := 0
			for _, c := range lane.Buckets {
				for _, x := range c {
					n += int(x)
				}
			}
			if lane.Comm != "python3" || part.from.IsZero() && n != lanes[lane.PID] {
				t.Errorf("%+v: process %d (%s) has %d records, want %d", part, lane.PID, lane.Comm, n, lanes[lane.PID])
			}
		}
		if len(got.Lanes) != 3 {
			t.Errorf("got %d lanes, want 3", len(got.Lanes))
		}
	}
}

func TestHistogramKeepsTotal(t *testing.T) {
	h := histogram{most: 16}
	n := uint32(0)
	for _, ts := range []int64{1_000_000, 1_000_001, 1_000_500, 3_000_000, 999_000, 5, 1_000_002, 9_000_000_000} {
		h.add(ts, KindNet)
		n++
		sum := uint32(0)
		for _, c := range h.bins {
			sum += c[KindNet]
		}
		if sum != n || len(h.bins) > 16 {
			t.Fatalf("after time %d: counted %d records in %d bins, want %d", ts, sum, len(h.bins), n)
		}
	}
}

func TestTallyBoundsProcesses(t *testing.T) {
	tl := (&Log{}).Tally(nil)
	for pid := range 10_000 {
		for range 1 + pid%3 {
			tl.lane(fmt.Appendf(nil, `{"type":"syscall","seq":1,"pid":%d,"comm":"a\"b\\"}`, pid)).add(1, KindSyscall)
		}
	}
	if len(tl.lanes) > 2*maxLanes {
		t.Errorf("the tally holds %d processes", len(tl.lanes))
	}
	for _, p := range tl.lanes {
		if p.comm != `a\"b\\` {
			t.Fatalf("process name = %s", p.comm)
		}
	}
}
