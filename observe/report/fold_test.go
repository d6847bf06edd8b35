package report_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"glasshouse/observe/event"
	"glasshouse/observe/report"
)

func TestFlowState(t *testing.T) {
	type packet struct{ dir, tcp string }
	const e, i = event.Egress, event.Ingress
	for _, c := range []struct {
		name    string
		packets []packet
		dir     string
		state   string
		times   int64
		refused int64
	}{
		{"no answer", []packet{{e, "SYN"}, {e, "SYN"}}, e, report.Unanswered, 1, 0},
		{"refused", []packet{{e, "SYN"}, {i, "RST,ACK"}}, e, report.Refused, 1, 1},
		{"spoken", []packet{{e, "SYN"}, {i, "SYN,ACK"}, {e, "ACK"}, {e, "PSH,ACK"}}, e, report.Established, 1, 0},
		{"closed", []packet{{e, "SYN"}, {i, "SYN,ACK"}, {e, "ACK"}, {i, "FIN,ACK"}, {e, "ACK"}}, e, report.Closed, 1, 0},
		{"reset", []packet{{e, "SYN"}, {i, "SYN,ACK"}, {i, "RST"}}, e, report.Reset, 1, 0},
		{"called from outside", []packet{{i, "SYN"}, {e, "SYN,ACK"}, {i, "ACK"}}, i, report.Established, 1, 0},
		{"refused by the jail", []packet{{i, "SYN"}, {e, "RST,ACK"}}, i, report.Refused, 1, 1},
		{"the first packet was not seen", []packet{{i, "SYN,ACK"}, {e, "ACK"}}, e, report.Established, 1, 0},
		{"seen from the middle on", []packet{{e, "ACK"}, {i, "PSH,ACK"}}, e, report.Established, 1, 0},
		{"twice on the same ports", []packet{{e, "SYN"}, {i, "RST,ACK"}, {e, "SYN"}, {i, "RST,ACK"}, {e, "SYN"}, {i, "SYN,ACK"}}, e, report.Established, 3, 2},
		{"the other way on the same ports", []packet{{e, "SYN"}, {i, "RST,ACK"}, {i, "SYN"}, {e, "SYN,ACK"}}, i, report.Established, 2, 1},
	} {
		s := newSession()
		for _, p := range c.packets {
			src, dst := "10.0.0.2:5000", "192.0.2.1:80"
			if p.dir == i {
				src, dst = dst, src
			}
			s.packet(0, p.dir, "tcp", src, dst, "", p.tcp, 40)
		}
		flows, n := flowsOf(s)
		if len(flows) != 1 || n.N != 1 {
			t.Errorf("%s: %d flows", c.name, len(flows))
			continue
		}
		f := flows[0]
		if f.Dir != c.dir || f.State != c.state || f.Times != c.times || f.Refused != c.refused || f.Local != "10.0.0.2:5000" || f.Remote != "192.0.2.1:80" {
			t.Errorf("%s: %s %s, %d times, %d refused, from %s to %s; want %s %s, %d times, %d refused", c.name,
				f.Dir, f.State, f.Times, f.Refused, f.Local, f.Remote, c.dir, c.state, c.times, c.refused)
		}
	}
}

func flowsOf(s *session) ([]report.Flow, report.Count) {
	n := report.NewNetLog()
	for i := range s.events {
		n.Add(&s.events[i])
	}
	return n.Flows()
}

func TestFlowSumsAreAdded(t *testing.T) {
	s := newSession().wait(time.Minute)
	s.add(event.Event{Type: event.Net, Dir: event.Egress, Proto: "tcp", Src: "10.0.0.2:1", Dst: "192.0.2.1:80", Packets: 7, Bytes: 700, TCP: "SYN,ACK,FIN", Begin: s.ns - 10e9, PID: 4, Comm: "curl"})
	s.add(event.Event{Type: event.Net, Dir: event.Ingress, Proto: "tcp", Src: "192.0.2.1:80", Dst: "10.0.0.2:1", Packets: 5, Bytes: 9000, TCP: "SYN,ACK,FIN", Begin: s.ns - 10e9})
	flows, _ := flowsOf(s)
	if len(flows) != 1 {
		t.Fatalf("%d flows", len(flows))
	}
	f := flows[0]
	want := report.Traffic{PacketsOut: 7, BytesOut: 700, PacketsIn: 5, BytesIn: 9000}
	if f.Traffic != want || f.State != report.Closed || f.PID != 4 || f.Dir != event.Egress || f.End.Sub(f.Begin) < 9*time.Second {
		t.Errorf("flow %+v, want %+v, closed, of 4, 10 s long", f, want)
	}
}

func TestLoopbackTrafficIsOneFlow(t *testing.T) {
	s := newSession()
	a, b := "127.0.0.1:40000", "127.0.0.1:8080"
	s.packet(4, event.Loopback, "tcp", a, b, "", "SYN", 60).packet(5, event.Loopback, "tcp", b, a, "", "SYN,ACK", 60)
	s.packet(4, event.Loopback, "tcp", a, b, "", "PSH,ACK", 100).packet(5, event.Loopback, "tcp", b, a, "", "PSH,ACK", 1000)
	flows, _ := flowsOf(s)
	if len(flows) != 1 || flows[0].Local != report.Text(a) || flows[0].BytesOut != 160 || flows[0].BytesIn != 1060 || flows[0].State != report.Established || flows[0].PID != 4 {
		t.Errorf("flows %+v", flows)
	}
	if n := makeReport(t, s, report.Options{}).Network; n.Total.BytesOut != 1220 || n.More != (report.Traffic{}) {
		t.Errorf("total %+v, not listed %+v", n.Total, n.More)
	}
}

func TestRefusedConnectMarksUnansweredFlow(t *testing.T) {
	s := newSession()
	s.packet(4, event.Egress, "tcp", "10.0.0.2:1", "192.0.2.1:80", "", "SYN", 60)
	s.call(4, "connect", -115, 1, addr("192.0.2.1:80"))
	if flows, _ := flowsOf(s); flows[0].State != report.Unanswered {
		t.Errorf("while it is under way: %s", flows[0].State)
	}
	s.call(4, "connect", -111, 1, addr("192.0.2.1:80"))
	if flows, _ := flowsOf(s); flows[0].State != report.Refused {
		t.Errorf("then: %s", flows[0].State)
	}
	n := makeReport(t, s, report.Options{}).Network
	if n.Failed != 1 || len(n.FailedConnects) != 1 || n.FailedConnects[0].Errno != "ECONNREFUSED" {
		t.Errorf("failed connects: %d, %+v", n.Failed, n.FailedConnects)
	}
}

func TestPeersAreHostsAndServices(t *testing.T) {
	s := newSession()
	for port := range 20 {
		s.packet(4, event.Egress, "tcp", fmt.Sprint("10.0.0.2:", 4000+port), "192.0.2.1:443", "a.example", "SYN", 60)
		s.packet(4, event.Ingress, "tcp", "198.51.100.7:"+fmt.Sprint(5000+port), "10.0.0.2:22", "", "SYN", 60)
	}
	s.packet(4, event.Egress, "udp", "10.0.0.2:4000", "[2001:db8::1]:53", "", "", 60)
	s.packet(4, event.Egress, "icmp", "10.0.0.2", "192.0.2.9", "", "", 84)
	var got []string
	for _, p := range makeReport(t, s, report.Options{}).Network.List {
		got = append(got, fmt.Sprint(p.Dir, " ", p.Service(), " ", p.Connections))
	}
	want := []string{"egress tcp a.example:443 20", "ingress tcp 198.51.100.7:22 20", "egress icmp 192.0.2.9 1", "egress udp [2001:db8::1]:53 1"}
	slices.Sort(got)
	slices.Sort(want)
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// notable returns a session's items of one kind: "what errno ×count".
func notable(t *testing.T, s *session, kind string, o report.Options) []string {
	t.Helper()
	var got []string
	for _, n := range makeReport(t, s, o).Notable {
		if n.Kind == kind {
			for _, i := range n.List {
				got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s×%d", i.What, i.Errno, i.Count)))
			}
		}
	}
	return got
}

func TestNotableEvents(t *testing.T) {
	started := func() *session { return newSession().fork(0, 1, "init").fork(1, 2, "sh").exec(2, "/bin/sh", "sh") }
	for _, c := range []struct {
		name, kind string
		do         func(*session)
		want       []string
	}{
		{"a user namespace", "namespace", func(s *session) { s.call(2, "unshare", 0, 1, args(0x10020000)) }, []string{"unshare mount+user ×1"}},
		{"a clone into one", "namespace", func(s *session) { s.call(2, "clone", 9, 1, args(0x20000011)) }, []string{"clone pid ×1"}},
		{"an ordinary fork", "namespace", func(s *session) { s.call(2, "clone", 9, 1, args(0x1200011)) }, nil},
		{"a thread's own directory", "namespace", func(s *session) { s.call(2, "unshare", 0, 1, args(0x200)) }, nil},
		{"mount refused", "mount", func(s *session) {
			s.call(2, "mount", -1, 1, path("/mnt")).call(2, "mount", -1, 1, path("/mnt"))
		}, []string{"mount /mnt EPERM×2"}},
		{"root again", "identity", func(s *session) { s.call(2, "setresuid", -1, 1, args(0, 0, 1<<32-1)) }, []string{"setresuid(0, 0, -1) EPERM×1"}},
		{"a debugger", "trace", func(s *session) { s.call(2, "ptrace", 0, 1, args(16, 1)) }, []string{"ptrace ATTACH ×1"}},
		{"bpf, denied", "denied", func(s *session) { s.call(2, "bpf", -1, 0, flagged(event.Denied)) }, []string{"bpf EPERM×1"}},
		{"clone3, for which programs use clone", "denied", func(s *session) { s.call(2, "clone3", -38, 0, flagged(event.Denied)) }, nil},
		{"clone3, refused for good", "denied", func(s *session) { s.call(2, "clone3", -1, 0, flagged(event.Denied)) }, []string{"clone3 EPERM×1"}},
		{"bpf, denied", "kernel", func(s *session) { s.call(2, "bpf", -1, 0, flagged(event.Denied)) }, []string{"bpf EPERM×1"}},
		{"io_uring", "kernel", func(s *session) { s.call(2, "io_uring_setup", 3, 1) }, []string{"io_uring_setup ×1"}},
		{"setuid root", "suid", func(s *session) { s.call(2, "fchmodat", 0, 1, args(0, 0, 0o4755), path("/tmp/x")) }, []string{"4755 /tmp/x ×1"}},
		{"made executable", "executable", func(s *session) { s.call(2, "chmod", 0, 1, args(0, 0o755), path("/tmp/x")) }, []string{"0755 /tmp/x ×1"}},
		{"only made readable", "executable", func(s *session) { s.call(2, "chmod", 0, 1, args(0, 0o644), path("/tmp/x")) }, nil},
		{"from memory", "memory-exec", func(s *session) { s.exec(2, "/memfd:x (deleted)", "x") }, []string{"/memfd:x (deleted) ×1"}},
		{"just written", "written-exec", func(s *session) { s.file(2, event.OpWrite, "/tmp/x", 9).exec(2, "/tmp/x", "x") }, []string{"/tmp/x ×1"}},
		{"written, renamed, deleted", "written-exec", func(s *session) {
			s.file(2, event.OpWrite, "/tmp/x", 9).file(2, event.OpRename, "/tmp/x", 0)
			s.events[len(s.events)-1].To = "/tmp/y"
			s.exec(2, "/tmp/y (deleted)", "y")
		}, []string{"/tmp/y (deleted) ×1"}},
		{"written in a directory that is renamed twice", "written-exec", func(s *session) {
			s.file(2, event.OpWrite, "/tmp/a/x", 9)
			for _, to := range []string{"/tmp/b", "/tmp/c"} {
				s.file(2, event.OpRename, map[string]string{"/tmp/b": "/tmp/a", "/tmp/c": "/tmp/b"}[to], 0)
				s.events[len(s.events)-1].To = to
			}
			s.exec(2, "/tmp/c/x", "x")
		}, []string{"/tmp/c/x ×1"}},
		{"exchanged for a program", "written-exec", func(s *session) {
			s.file(2, event.OpWrite, "/tmp/x", 9).exchange(2, "/tmp/x", "/usr/bin/y").exec(2, "/usr/bin/y", "y")
		}, []string{"/usr/bin/y ×1"}},
		{"a program for which it is exchanged", "written-exec", func(s *session) {
			s.file(2, event.OpWrite, "/tmp/x", 9).exchange(2, "/usr/bin/y", "/tmp/x").exec(2, "/usr/bin/y", "y")
		}, []string{"/usr/bin/y ×1"}},
		{"written in an exchanged directory", "written-exec", func(s *session) {
			s.file(2, event.OpWrite, "/tmp/a/x", 9).exchange(2, "/opt/b", "/tmp/a").exec(2, "/opt/b/x", "x")
		}, []string{"/opt/b/x ×1"}},
		{"another file in an exchanged directory", "written-exec", func(s *session) {
			s.file(2, event.OpWrite, "/tmp/a/x", 9).exchange(2, "/opt/b", "/tmp/a").exec(2, "/opt/b/y", "y")
		}, nil},
		{"was there before", "written-exec", func(s *session) { s.file(2, event.OpRead, "/tmp/x", 9).exec(2, "/tmp/x", "x") }, nil},
		{"into /etc", "outside", func(s *session) { s.file(2, event.OpWrite, "/etc/passwd", 9).file(2, event.OpWrite, "/workshop/x", 1) }, []string{"/etc/passwd ×1", "/workshop/x ×1"}},
		{"into the workspace and the like", "outside", func(s *session) {
			s.file(2, event.OpWrite, "/work/a", 9).file(2, event.OpWrite, "/tmp/a", 9).file(2, event.OpWrite, "/dev/null", 9).file(2, event.OpWrite, "pipe:[3]", 9)
		}, nil},
		{"into /etc, failed", "outside", func(s *session) {
			s.file(2, event.OpCreate, "/etc/x", 0)
			s.events[len(s.events)-1].Ret = -13
		}, nil},
		{"crashed", "crashed", func(s *session) { s.exit(2, 0, "SIGSEGV") }, []string{"SIGSEGV sh ×1"}},
		{"ended by itself", "killed", func(s *session) { s.exit(2, 3, "") }, nil},
		{"killed by its parent", "killed", func(s *session) { s.call(1, "kill", 0, 1, args(2, 9)).exit(2, 0, "SIGKILL") }, []string{"SIGKILL sh ×1"}},
		{"killed with bits that the kernel ignores", "killed", func(s *session) { s.call(1, "kill", 0, 1, args(2, 1<<32|9)).exit(2, 0, "SIGKILL") }, []string{"SIGKILL sh ×1"}},
		{"killed with information", "killed", func(s *session) { s.call(1, "rt_tgsigqueueinfo", 0, 1, args(2, 2, 9)).exit(2, 0, "SIGKILL") }, []string{"SIGKILL sh ×1"}},
		{"killed through a thread", "killed", func(s *session) { s.call(1, "tkill", 0, 1, args(77, 9)).exit(2, 0, "SIGKILL") }, []string{"SIGKILL sh ×1"}},
		{"killed from outside", "killed-outside", func(s *session) { s.exit(2, 0, "SIGKILL").wait(time.Minute).fork(1, 3, "init") }, []string{"SIGKILL sh ×1"}},
		{"killed with the jail, the first last", "killed-outside", func(s *session) { s.exit(2, 0, "SIGKILL").exit(1, 0, "SIGKILL") }, nil},
		{"killed with the jail, the first first", "killed-outside", func(s *session) { s.exit(1, 0, "SIGKILL").exit(2, 0, "SIGKILL") }, nil},
		{"out of memory", "oom", func(s *session) { s.usage(1, 95<<20, 2, 0, 0, 0).exit(2, 0, "SIGKILL") }, []string{"SIGKILL sh ×1"}},
		{"killed with memory left", "oom", func(s *session) { s.usage(1, 50<<20, 2, 0, 0, 0).exit(2, 0, "SIGKILL") }, nil},
		{"made by Glasshouse", "mount", func(s *session) { s.call(2, "mount", 0, 1, path("/mnt"), flagged(event.Injected)) }, nil},
		{"a port without a server", "refused", func(s *session) {
			s.packet(2, event.Egress, "tcp", "10.0.0.2:1", "192.0.2.1:80", "", "SYN", 60).packet(2, event.Ingress, "tcp", "192.0.2.1:80", "10.0.0.2:1", "", "RST,ACK", 40)
			s.call(2, "connect", -111, 1, addr("192.0.2.1:80"))
		}, []string{"tcp 192.0.2.1:80 refused ×1"}},
		{"no packets are recorded", "refused", func(s *session) { s.call(2, "connect", -111, 1, addr("192.0.2.1:80")) }, []string{"connect 192.0.2.1:80 ECONNREFUSED ×1"}},
		{"rewound", "lineage", func(s *session) {
			s.add(event.Event{Type: event.Lineage, Op: event.OpRewind, Snapshot: "s-7k2mwq4x9dpa", Parent: "j-3f2akm9x7qpw"})
		}, []string{"rewind s-7k2mwq4x9dpa of j-3f2akm9x7qpw ×1"}},
		{"a gap", "gap", func(s *session) { s.add(event.Event{Type: event.Gap, Source: event.Net, Lost: 4, Reason: "ring full"}) }, []string{"net: ring full ×1"}},
	} {
		s := started()
		c.do(s)
		got := notable(t, s, c.kind, report.Options{Workspace: []string{"/work/"}, Memory: 100 << 20})
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s:\n%s", c.name, d)
		}
	}
}

func TestClone3FallbackIsNotDenied(t *testing.T) {
	s := newSession().fork(0, 1, "sh")
	for range 3 {
		s.call(1, "clone3", -38, 0, flagged(event.Denied))
	}
	s.call(1, "bpf", -1, 0, flagged(event.Denied))
	r := makeReport(t, s, report.Options{})
	if r.Failures.Denied != 1 || r.Failures.Count != 3 || len(r.Failures.List) != 2 {
		t.Fatalf("%d calls denied and %d failed: %+v", r.Failures.Denied, r.Failures.Count, r.Failures.List)
	}
	if f := r.Failures.List[1]; f.Name != "clone3" || f.Class != "failed" || f.Count != 3 || f.Events.Query != "type:syscall name:clone3 ret:ENOSYS" {
		t.Errorf("the fallback is listed as %+v", f)
	}
}

func TestFilesChangedOutsideAreCountedAsFiles(t *testing.T) {
	s := newSession().fork(0, 1, "sh")
	for range 1500 {
		s.file(1, event.OpWrite, "/etc/passwd", 9).file(1, event.OpWrite, "/etc/group", 9)
	}
	r := makeReport(t, s, report.Options{})
	var page, md bytes.Buffer
	if err := errors.Join(r.HTML(&page), r.Markdown(&md)); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{page.String(), md.String()} {
		if !strings.Contains(text, "2 files, 3,000 operations") {
			t.Errorf("the report does not count the files:\n%s", text)
		}
	}
}

func TestFileMovesToListOfItsOperations(t *testing.T) {
	s := newSession().fork(0, 1, "sh")
	s.file(1, event.OpOpen, "/a", 0)
	s.events[len(s.events)-1].Ret = -2
	s.file(1, event.OpOpen, "/b", 0)
	s.events[len(s.events)-1].Ret = -2
	s.file(1, event.OpOpen, "/b", 0).file(1, event.OpRead, "/b", 10).file(1, event.OpOpen, "/c", 0).file(1, event.OpRead, "/c", 20)
	s.file(1, event.OpWrite, "/c", 30).file(1, event.OpRead, "/c", 40).file(1, event.OpDelete, "/c", 0)
	f := makeReport(t, s, report.Options{}).Files
	say := func(l report.FileList) string {
		out := l.Paths.String()
		for _, x := range l.List {
			out += fmt.Sprintf("; %s %s", x.Path, x.Done())
		}
		if l.More != (report.FileUse{}) {
			out += fmt.Sprintf("; and %+v", l.More)
		}
		return out
	}
	for _, c := range []struct{ name, got, want string }{
		{"changed", say(f.Changed), "1; /c 30 B in 1 write, deleted, 60 B in 2 reads"},
		{"read", say(f.Read), "1; /b 10 B in 1 read, 1 failed"},
		{"failed", say(f.Failed), "1; /a 1 failed"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s, want %s", c.name, c.got, c.want)
		}
	}
}

func TestEqualCommandsAreGrouped(t *testing.T) {
	s := newSession().fork(0, 1, "sh").exec(1, "/bin/sh", "sh", "-c", "for …")
	for pid := int32(2); pid < 32; pid++ {
		s.fork(1, pid, "sh").exec(pid, "/bin/true", "true").wait(time.Millisecond).exit(pid, pid%3/2, "")
	}
	s.fork(1, 40, "sh").exec(40, "/usr/bin/env", "env", "python3").exec(40, "/usr/bin/python3", "python3")
	c := makeReport(t, s, report.Options{}).Commands
	var got []string
	for _, x := range c.List {
		got = append(got, fmt.Sprintf("%s: %d, %s", x.Line(), x.Runs, x.Ended()))
	}
	want := []string{"sh -c 'for …': 1, still running", "true: 30, 20 × exit 0, 10 × exit 1", "env python3: 1, became another program", "python3: 1, still running"}
	if d := cmp.Diff(want, got); d != "" || c.Runs != 33 || c.Failed != 10 {
		t.Errorf("%d runs, %d failed:\n%s", c.Runs, c.Failed, d)
	}
}

func TestUsageHasAtMost200Points(t *testing.T) {
	for _, every := range []time.Duration{time.Millisecond, time.Second, time.Hour} {
		s := newSession()
		for i := range int64(3000) {
			s.usage(time.Duration(i)*every/2, i<<10, i%7, i, 0, i*10).call(1, "read", 1, 1).wait(every - 2*time.Microsecond)
		}
		u := makeReport(t, s, report.Options{}).Usage
		calls := 0.0
		for i, p := range u.Points {
			calls += p.Syscalls * float64(u.Step) / 1000
			if p.Sampled && i > 0 && (p.Cores < .4 || p.Cores > .6) {
				t.Errorf("every %v: %.2f processors busy at point %d, want half a one", every, p.Cores, i)
			}
		}
		if n := len(u.Points); n < 50 || n > 200 {
			t.Errorf("every %v: %d points", every, n)
		}
		if int(calls+.5) != 3000 || u.Samples != 3000 || u.PeakMemory != 2999<<10 || u.PeakPIDs != 6 || u.CPU != int64(2999*every/2) || u.Tx != 29990 {
			t.Errorf("every %v: %.0f calls, %+v", every, calls, report.Usage{Samples: u.Samples, CPU: u.CPU, PeakMemory: u.PeakMemory, PeakPIDs: u.PeakPIDs, Tx: u.Tx})
		}
	}
}

func TestCPUTimeContinuesAfterRestart(t *testing.T) {
	s := newSession()
	s.usage(0, 0, 0, 0, 0, 0).wait(time.Second).usage(5*time.Second, 0, 0, 0, 0, 0).wait(time.Second)
	s.usage(time.Second, 0, 0, 0, 0, 0).wait(time.Second).usage(3*time.Second, 0, 0, 0, 0, 0)
	if got := makeReport(t, s, report.Options{}).Usage.CPU; got != int64(8*time.Second) {
		t.Errorf("%v, want 8s", time.Duration(got))
	}
}

func TestQuantilesAreWithinTheirBuckets(t *testing.T) {
	s := newSession().fork(0, 1, "sh")
	for i := range 1000 {
		s.call(1, "read", 0, time.Duration(i+1)*time.Microsecond)
	}
	s.call(1, "read", 0, 77*time.Second, flagged(event.Partial)) // the duration is unknown
	c := makeReport(t, s, report.Options{}).Syscalls.List[0]
	if c.Count != 1001 || c.Timed != 1000 || c.Latency.Min != 1000 || c.Latency.Max != 1e6 {
		t.Errorf("call %+v", c)
	}
	for _, q := range []struct{ got, want int64 }{{c.Latency.P50, 500e3}, {c.Latency.P90, 900e3}, {c.Latency.P99, 990e3}} {
		if q.got < q.want*9/10 || q.got > q.want*11/10 {
			t.Errorf("quantile %d, want about %d", q.got, q.want)
		}
	}
	n := int64(0)
	for _, b := range c.Latency.Buckets {
		n += b.Count
	}
	if n != 1000 {
		t.Errorf("%d in the buckets, want 1000", n)
	}
}

func TestCallsThatNeverReturnAndReturnsWithoutCall(t *testing.T) {
	s := newSession().fork(0, 1, "sh")
	s.call(1, "exit_group", 0, 0, flagged(event.Unfinished)).call(1, "clone", 2, 10).call(2, "clone", 0, 0, flagged(event.Child))
	c := makeReport(t, s, report.Options{}).Syscalls
	if c.Count != 2 || c.Unfinished != 1 {
		t.Errorf("%d calls, %d unfinished; want 2 and 1", c.Count, c.Unfinished)
	}
}

func TestEmptyListsAreNotNull(t *testing.T) {
	for _, s := range []*session{newSession(), newSession().fork(0, 1, "sh").exec(1, "/x").call(1, "x", 0, 0).file(1, event.OpOpen, "/x", 0)} {
		b, err := json.Marshal(makeReport(t, s, report.Options{}))
		if err != nil || bytes.Contains(b, []byte("null")) {
			t.Errorf("%v, %s", err, b)
		}
	}
}

func TestEmptyReport(t *testing.T) {
	r := makeReport(t, newSession(), report.Options{})
	var b bytes.Buffer
	if err := r.HTML(&b); err != nil {
		t.Error(err)
	}
	if err := r.Markdown(&b); err != nil {
		t.Error(err)
	}
	if !strings.Contains(b.String(), "Nothing was recorded.") || r.Completeness.Complete {
		t.Errorf("of no records: complete %v, %.500s", r.Completeness.Complete, b.String())
	}
}

func TestFilterForLongPathIsCutAtRuneBoundary(t *testing.T) {
	for n := range 4 {
		filter := report.Literal(strings.Repeat("x", n) + strings.Repeat("€", 1000))
		if _, err := event.ParseFilter("path:" + filter); err != nil || !utf8.ValidString(filter) || !strings.HasSuffix(filter, `€"*`) {
			t.Errorf("the filter ends in %q: %v", filter[len(filter)-8:], err)
		}
	}
}
