package report_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glasshouse/id"
	"glasshouse/observe/event"
	"glasshouse/observe/eventlog"
	"glasshouse/observe/report"
)

// logged writes a session to a log.
func logged(t testing.TB, events []event.Event) *eventlog.Log {
	t.Helper()
	l := eventlog.New(eventlog.Config{Dir: t.TempDir(), Jail: jail, Policy: eventlog.Policy{SegmentMB: 1}})
	if err := l.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	for _, e := range events {
		for !l.HasRoom() {
			time.Sleep(time.Millisecond)
		}
		l.Append(&e)
	}
	if err := l.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

// changedAt returns the changed files at an event, sorted: "added /a".
func changedAt(t *testing.T, p *report.Past, seq uint64) []string {
	t.Helper()
	then, err := p.At(t.Context(), report.Instant{Seq: seq})
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for _, c := range then.Changed {
		s := c.Kind + " " + string(c.Path)
		if c.From != "" {
			s += " from " + string(c.From)
		}
		list = append(list, s)
	}
	slices.Sort(list)
	return list
}

func (s *session) move(pid int32, from, to string) *session {
	return s.add(event.Event{Type: event.File, PID: pid, Op: event.OpRename, Path: from, To: to, FD: -1})
}

func (s *session) exchange(pid int32, one, other string) *session {
	return s.add(event.Event{Type: event.File, PID: pid, Op: event.OpExchange, Path: one, To: other, FD: -1})
}

func (s *session) lineage(op string, sid id.Snapshot, seq uint64) *session {
	return s.add(event.Event{Type: event.Lineage, Op: op, Snapshot: sid, Parent: jail, ParentSeq: seq})
}

func (s *session) seq() uint64 { return uint64(len(s.events)) }

func TestChangedFilesAtInstant(t *testing.T) {
	s := newSession()
	for _, step := range []struct {
		do   func()
		want string
	}{
		{func() { s.file(7, event.OpOpen, "/etc/passwd", 0).file(7, event.OpRead, "/etc/passwd", 99) }, ""},
		{func() { s.file(7, event.OpCreate, "/work/a", 0).file(7, event.OpWrite, "/work/a", 10) }, "added /work/a"},
		{func() { s.file(7, event.OpWrite, "/etc/hosts", 5) }, "added /work/a, modified /etc/hosts"},
		{func() { s.file(7, event.OpMode, "/etc/group", 0) }, "added /work/a, metadata /etc/group, modified /etc/hosts"},
		{func() { s.file(7, event.OpWrite, "/dev/null", 5).file(7, event.OpCreate, "/proc/self/x", 5) }, "added /work/a, metadata /etc/group, modified /etc/hosts"},
		{func() { s.file(7, event.OpDelete, "/etc/hosts", 0).file(7, event.OpDelete, "/work/a", 0) }, "deleted /etc/hosts, metadata /etc/group"},
		{func() { s.file(7, event.OpWrite, "/work/a", 3).file(7, event.OpWrite, "/etc/hosts", 3) }, "deleted /etc/hosts, metadata /etc/group"}, // written through open descriptors
		{func() { s.file(7, event.OpCreate, "/etc/hosts", 0) }, "metadata /etc/group, modified /etc/hosts"},
		{func() { s.move(7, "/etc/group", "/etc/old") }, "modified /etc/hosts, renamed /etc/old from /etc/group"},
		{func() { s.move(7, "/etc/old", "/etc/older") }, "modified /etc/hosts, renamed /etc/older from /etc/group"},
		{func() { s.file(7, event.OpDelete, "/etc/older", 0) }, "deleted /etc/group, modified /etc/hosts"},
		{func() { s.file(7, event.OpCreate, "/etc/.tmp", 0).move(7, "/etc/.tmp", "/etc/hosts") }, "deleted /etc/group, modified /etc/hosts"},
		{func() {
			s.file(7, event.OpMkdir, "/work/d", 0).file(7, event.OpCreate, "/work/d/f", 0).move(7, "/work/d", "/work/e")
		},
			"added /work/e, added /work/e/f, deleted /etc/group, modified /etc/hosts"},
		{func() {
			s.add(event.Event{Type: event.File, PID: 7, Op: event.OpDelete, Path: "/etc/passwd", Ret: -13})
		},
			"added /work/e, added /work/e/f, deleted /etc/group, modified /etc/hosts"},
		{func() { s.file(7, event.OpWrite, "/usr/lib/x", 1).move(7, "/usr", "/user").move(7, "/user", "/usr") },
			"added /work/e, added /work/e/f, deleted /etc/group, modified /etc/hosts, modified /usr, modified /usr/lib/x"},
	} {
		step.do()
		p := report.NewPast(logged(t, s.events))
		if got := strings.Join(changedAt(t, p, s.seq()), ", "); got != step.want {
			t.Errorf("after %d records: %q, want %q", s.seq(), got, step.want)
		}
	}
	// All earlier states are still available from the same log.
	p := report.NewPast(logged(t, s.events))
	if got := strings.Join(changedAt(t, p, 4), ", "); got != "added /work/a" {
		t.Errorf("when it had written its first file: %q", got)
	}
}

func TestExchangedFiles(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(s *session)
		want string
	}{
		{"both existed", func(s *session) { s.exchange(7, "/etc/a", "/etc/b") }, "renamed /etc/a from /etc/b, renamed /etc/b from /etc/a"},
		{"twice", func(s *session) { s.exchange(7, "/etc/a", "/etc/b").exchange(7, "/etc/b", "/etc/a") }, "modified /etc/a, modified /etc/b"},
		{"with itself", func(s *session) { s.exchange(7, "/etc/a", "/etc/a") }, ""},
		{"both are new", func(s *session) {
			s.file(7, event.OpCreate, "/work/a", 0).file(7, event.OpMkdir, "/work/b", 0).exchange(7, "/work/a", "/work/b")
		}, "added /work/a, added /work/b"},
		{"one is new", func(s *session) { s.file(7, event.OpCreate, "/etc/new", 0).exchange(7, "/etc/new", "/etc/a") }, "modified /etc/a, renamed /etc/new from /etc/a"},
		{"replaced atomically", func(s *session) {
			s.file(7, event.OpCreate, "/etc/new", 0).exchange(7, "/etc/new", "/etc/a").file(7, event.OpDelete, "/etc/new", 0)
		}, "modified /etc/a"},
		{"replaced after a rename", func(s *session) {
			s.move(7, "/etc/a", "/etc/old").file(7, event.OpCreate, "/etc/a", 0).file(7, event.OpDelete, "/etc/old", 0)
		}, "modified /etc/a"},
		{"one is deleted", func(s *session) { s.exchange(7, "/etc/a", "/etc/b").file(7, event.OpDelete, "/etc/a", 0) }, "renamed /etc/b from /etc/a"},
		{"directories", func(s *session) {
			s.file(7, event.OpCreate, "/work/a/x", 0).file(7, event.OpWrite, "/work/b/y", 1).exchange(7, "/work/a", "/work/b")
		}, "added /work/b/x, modified /work/a/y, renamed /work/a from /work/b, renamed /work/b from /work/a"},
	} {
		s := newSession()
		c.do(s)
		p := report.NewPast(logged(t, s.events))
		if got := strings.Join(changedAt(t, p, s.seq()), ", "); got != c.want {
			t.Errorf("%s: changed files are %q, want %q", c.name, got, c.want)
		}
	}
}

func TestRewindUndoesChanges(t *testing.T) {
	s := newSession().file(7, event.OpCreate, "/work/a", 0)
	one := s.seq()
	s.lineage(event.OpSnapshot, "s-aaaaaaaaaaaa", one).file(7, event.OpDelete, "/work/a", 0).file(7, event.OpCreate, "/work/b", 0)
	two := s.seq()
	s.lineage(event.OpSnapshot, "s-bbbbbbbbbbbb", two).file(7, event.OpCreate, "/work/c", 0)
	late := s.seq()
	s.lineage(event.OpRewind, "s-aaaaaaaaaaaa", one).file(7, event.OpCreate, "/work/d", 0)
	back := s.seq()
	s.lineage(event.OpRewind, "s-bbbbbbbbbbbb", two)
	forth := s.seq()
	s.file(7, event.OpCreate, "/work/e", 0)
	p := report.NewPast(logged(t, s.events))
	for _, tt := range []struct {
		seq    uint64
		want   string
		before []uint64 // sequence numbers of one, two, late and back in the history of seq
	}{
		{late, "added /work/b, added /work/c", []uint64{one, two, late}},
		{back, "added /work/a, added /work/d", []uint64{one, back}},
		{forth, "added /work/b", []uint64{one, two}},
		{s.seq(), "added /work/b, added /work/e", []uint64{one, two}},
		{one, "added /work/a", []uint64{one}},
	} {
		if got := strings.Join(changedAt(t, p, tt.seq), ", "); got != tt.want {
			t.Errorf("at record %d: %q, want %q", tt.seq, got, tt.want)
		}
		then, err := p.At(t.Context(), report.Instant{Seq: tt.seq})
		if err != nil {
			t.Fatal(err)
		}
		for _, seq := range []uint64{one, two, late, back} {
			if got, want := then.Before(seq), slices.Contains(tt.before, seq); seq <= tt.seq && got != want {
				t.Errorf("that record %d led to %d is %v, want %v", seq, tt.seq, got, want)
			}
		}
	}
}

// long returns a session that forks, writes, rewinds, and repeats. Its events are slightly out
// of order, as those of several CPUs are.
func long(n int) *session {
	s := newSession().fork(0, 1, "init").exec(1, "/init", "init")
	var snapshot uint64
	for i := range n {
		pid := int32(100 + i%300)
		switch {
		case i%7 == 0:
			s.fork(1, pid, "init").exec(pid, "/bin/sh", "sh", fmt.Sprint(i))
		case i%7 == 6:
			if s.last(pid-6).Op != event.OpExit {
				s.exit(pid-6, int32(i%3), "")
			}
		case i%31 == 0:
			s.file(pid, event.OpDelete, fmt.Sprintf("/work/%d", i%13), 0)
		case i%501 == 500:
			s.lineage(event.OpSnapshot, "s-aaaaaaaaaaaa", s.seq())
			snapshot = s.seq() - 1
		case i%1701 == 1700:
			s.lineage(event.OpRewind, "s-aaaaaaaaaaaa", snapshot)
		case i%5 == 1:
			s.file(pid, event.OpCreate, fmt.Sprintf("/work/%d", i%17), 0)
		case i%5 == 2:
			s.move(pid, fmt.Sprintf("/work/%d", i%17), fmt.Sprintf("/work/%d", i%13))
		default:
			s.call(pid, "read", 1, time.Microsecond)
		}
		s.wait(300 * time.Microsecond)
	}
	for i := range s.events {
		s.events[i].TS -= int64(i % 3)
	}
	return s
}

func TestCachedPastEqualsFreshPast(t *testing.T) {
	s := long(20_000)
	l := logged(t, s.events)
	p := report.NewPast(l)
	p.EveryForTest(256)
	look := func(p *report.Past, at report.Instant) (processes []report.Process, files []report.Changed) {
		then, err := p.At(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		return then.Tree.Processes(false), then.Changed
	}
	for i := range 60 {
		e := s.events[(i*7919+len(s.events)-1)%len(s.events)]
		at := report.Instant{Time: time.UnixMilli(e.TS)}
		if i%2 == 1 {
			at = report.Instant{Seq: e.Seq}
		}
		processes, files := look(p, at)
		wantProcesses, wantFiles := look(report.NewPast(l), at)
		if d := cmp.Diff(wantProcesses, processes); d != "" {
			t.Fatalf("processes at %v:\n%s", at, d)
		}
		if d := cmp.Diff(wantFiles, files); d != "" {
			t.Fatalf("files at %v:\n%s", at, d)
		}
		c, err := l.Read(t.Context(), eventlog.Query{})
		if err != nil {
			t.Fatal(err)
		}
		tree, err := report.TreeAt(c, at)
		c.Close()
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(outline(tree.Processes(false)), outline(processes)); d != "" {
			t.Fatalf("the tree at %v, read whole:\n%s", at, d)
		}
	}
}

func TestPastMemoryIsBounded(t *testing.T) {
	s := newSession().fork(0, 1, "init")
	for i := range 60_000 {
		s.add(event.Event{Type: event.File, PID: 7, Op: event.OpCreate, Path: fmt.Sprintf("/work/%d", i), FD: 3})
	}
	p := report.NewPast(logged(t, s.events))
	p.EveryForTest(64)
	then, err := p.At(t.Context(), report.Instant{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(then.Changed); n < 8192 || n > 16384 || !then.Cut {
		t.Errorf("%d files are remembered, and that there were more is said: %v", n, then.Cut)
	}
	if then.Changed[0].Path != "/work/59999" {
		t.Errorf("the last change is of %s", then.Changed[0].Path)
	}
	if frames, weight := p.FramesForTest(); frames > 64 || weight > 1<<18 {
		t.Errorf("%d frames of %d files", frames, weight)
	}
}

func TestPastReportsLostFileEvents(t *testing.T) {
	s := newSession().file(7, event.OpCreate, "/work/a", 0)
	s.add(event.Event{Type: event.Gap, Source: event.File, Lost: 12, Reason: "ring full"})
	s.add(event.Event{Type: event.Gap, Source: event.Proc, Lost: -1, Reason: "ring full"})
	s.add(event.Event{Type: event.Gap, Source: event.Net, Lost: 5, Reason: "ring full"})
	p := report.NewPast(logged(t, s.events))
	then, err := p.At(t.Context(), report.Instant{})
	if err != nil {
		t.Fatal(err)
	}
	if then.Lost != (report.Lost{Records: 12}) || then.Tree.Known().Lost != (report.Lost{Unknown: true}) {
		t.Errorf("lost of files %+v and of processes %+v", then.Lost, then.Tree.Known().Lost)
	}
}
