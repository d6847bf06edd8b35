package gvisor

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"glasshouse/observe/event"
	"glasshouse/observe/syscalls"
)

// A datagram builds a message of gVisor.
func datagram(k kind, dropped uint32, fields ...[]byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, headerSize)
	b = binary.NativeEndian.AppendUint16(b, uint16(k))
	b = binary.NativeEndian.AppendUint32(b, dropped)
	for _, f := range fields {
		b = append(b, f...)
	}
	return b
}

func num(n protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, n, protowire.VarintType), v)
}

func text(n protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, n, protowire.BytesType), s)
}

func message(n protowire.Number, fields ...[]byte) []byte {
	var b []byte
	for _, f := range fields {
		b = append(b, f...)
	}
	return text(n, string(b))
}

// at returns the context of a point: thread, process and time.
func at(pid, tid int32, ns int64) []byte {
	return message(1, num(1, uint64(ns)), num(2, uint64(tid)), num(4, uint64(pid)), message(7, num(1, 1000), num(4, 100)), text(8, "/work"))
}

// called is like at, but with the name of the thread.
func called(pid, tid int32, name string) []byte {
	return message(1, num(1, 5), num(2, uint64(tid)), num(4, uint64(pid)), text(9, name))
}

func exits(ret int64) []byte {
	if ret < 0 {
		return message(2, num(2, uint64(-ret)))
	}
	return message(2, num(1, uint64(ret)))
}

func nr(name string) uint64 {
	n, _ := syscalls.Number("", name)
	return uint64(n)
}

func enters(name string, args ...uint64) []byte {
	b := num(4, nr(name))
	for i, a := range args {
		b = append(b, num(protowire.Number(5+i), a)...)
	}
	return b
}

// A page is an in-memory log with one line per event.
type page struct {
	b     strings.Builder
	names bool // keep only the names of threads
}

func (p *page) HasRoom() bool                                    { return true }
func (p *page) Last() uint64                                     { return 0 }
func (p *page) Written() uint64                                  { return 0 }
func (p *page) FlushSoon()                                       {}
func (p *page) Kept(int64, event.Type, func(*event.Event)) error { return nil }
func (p *page) line(format string, args ...any)                  { fmt.Fprintf(&p.b, format+"\n", args...) }
func (p *page) Append(e *event.Event) {
	if p.names {
		p.line("%s %s", cmp.Or(e.Name, e.Op, e.Type.String()), e.Comm)
		return
	}
	flags := ""
	for _, f := range []struct {
		f    event.Flags
		word string
	}{
		{event.Unfinished, " unfinished"}, {event.Partial, " partial"}, {event.Unresolved, " unresolved"}, {event.Cut, " cut"},
		{event.Existing, " existing"}, {event.Thread, " thread"}, {event.Injected, " injected"},
	} {
		if e.Flags&f.f != 0 {
			flags += f.word
		}
	}
	who := fmt.Sprintf("%d/%d", e.PID, e.TID)
	switch e.Type {
	case event.Syscall:
		p.line("%s %s(%d) = %d in %d %s%s%s", who, e.Name, e.Args[0], e.Ret, e.Dur, e.Path, e.Addr, flags)
	case event.File:
		p.line("%s %s %q %d bytes fd %d ret %d%s", who, e.Op, e.Path, e.Bytes, e.FD, e.Ret, flags)
	case event.Proc:
		p.line("%s %s of %d, %d:%d %s %q in %q code %d%s%s", who, e.Op, e.PPID, e.UID, e.GID, e.Exe, e.Argv, e.Cwd, e.Code, e.Signal, flags)
	case event.Gap:
		p.line("gap %d: %s", e.Lost, e.Reason)
	}
}

// told returns the events that a book creates from datagrams.
func told(t testing.TB, s event.Selection, datagrams ...[]byte) string {
	t.Helper()
	b, p := newPage(t, s)
	for _, d := range datagrams {
		feed(t, b, d)
	}
	b.settleAll()
	return p.b.String()
}

func newPage(t testing.TB, s event.Selection) (*book, *page) {
	t.Helper()
	p := &page{}
	b := newBook("j-test", p, func(int64) bool { return false })
	b.clock = clock{first: 0, last: 1 << 60}
	b.choice = chosen(t, s)
	b.process(1)
	b.process(7)
	return b, p
}

// chosen evaluates a selection for a gVisor that has all points.
func chosen(t testing.TB, s event.Selection) *choice {
	t.Helper()
	ps := points{}
	for _, name := range essential {
		ps[name] = nil
	}
	for n := range int32(calls) {
		ps["syscall/sysno/"+itoa(n)+"/enter"], ps["syscall/sysno/"+itoa(n)+"/exit"] = nil, nil
	}
	for name, when := range detailed {
		ps["syscall/"+name+"/"+when] = []string{"fd_path"}
	}
	c, err := newChoice(s.Defaults(event.Selection{}), ps, "sink")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func feed(t testing.TB, b *book, d []byte) {
	t.Helper()
	k, _, payload, err := header(d)
	var p point
	if err == nil {
		err = p.parse(k, payload)
	}
	if err != nil {
		t.Fatal(err)
	}
	b.point(&p)
}

func expect(t *testing.T, got string, want ...string) {
	t.Helper()
	if w := strings.Join(want, "\n") + "\n"; got != w {
		t.Errorf("records:\n%swant:\n%s", got, w)
	}
}

func TestCallFromTwoPoints(t *testing.T) {
	got := told(t, event.Selection{},
		datagram(kindRaw, 0, at(7, 8, 100), enters("getppid", 5)),
		datagram(kindRaw, 0, at(7, 9, 110), enters("getuid")),
		datagram(kindRaw, 0, at(7, 9, 120), enters("getuid"), exits(1000)),
		datagram(kindRaw, 0, at(7, 8, 142), enters("getppid", 5), exits(-1)))
	expect(t, got, "7/9 getuid(0) = 1000 in 10 ", "7/8 getppid(5) = -1 in 42 ")
}

func TestOpenPathFromDetailPoint(t *testing.T) {
	open := func(path, dir string) []byte {
		return datagram(kindOpen, 0, at(7, 7, 3), exits(4), num(3, nr("openat")), num(4, 0), text(5, dir), text(6, path))
	}
	for _, c := range []struct{ path, dir, want string }{
		{"/etc/passwd", "", "/etc/passwd"},
		{"note", "", "/work/note"},
		{"./a//b", "", "/work/a/b"},
		{"note", "/srv", "/srv/note"},
		{"link/../note", "", "/work/link/../note"}, // the link target is unknown
	} {
		got := told(t, event.Selection{Syscalls: "off"},
			datagram(kindRaw, 0, at(7, 7, 1), enters("openat", 0, 0, 0)),
			datagram(kindRaw, 0, at(7, 7, 2), enters("openat", 0, 0, 0), exits(4)),
			open(c.path, c.dir))
		expect(t, got, fmt.Sprintf("7/7 open %q 0 bytes fd 4 ret 0", c.want))
	}
}

func TestOnlyExclusiveOpenIsCreate(t *testing.T) {
	for flags, op := range map[uint64]string{0o100: "open", 0o300: "create", 0o1100: "open", 0o200: "open"} {
		got := told(t, event.Selection{Syscalls: "off"},
			datagram(kindRaw, 0, at(7, 7, 1), enters("openat", 0, 0, flags)),
			datagram(kindRaw, 0, at(7, 7, 2), enters("openat", 0, 0, flags), exits(4)),
			datagram(kindOpen, 0, at(7, 7, 3), exits(4), num(3, nr("openat")), text(6, "/x")))
		expect(t, got, fmt.Sprintf("7/7 %s %q 0 bytes fd 4 ret 0", op, "/x"))
	}
}

func TestExchangeIsNotRename(t *testing.T) {
	for flags, op := range map[uint64]string{0: "rename", 1: "rename", 2: "exchange"} {
		got := told(t, event.Selection{Syscalls: "off"},
			datagram(kindRaw, 0, at(7, 7, 1), enters("renameat2", 0, 0, 0, 0, flags)),
			datagram(kindRaw, 0, at(7, 7, 2), enters("renameat2", 0, 0, 0, 0, flags), exits(0)))
		expect(t, got, fmt.Sprintf("7/7 %s %q 0 bytes fd -1 ret 0 unresolved", op, ""))
	}
}

func TestSocketReadIsNotFileEvent(t *testing.T) {
	for path, want := range map[string]string{
		"/etc/passwd":         "7/7 read \"/etc/passwd\" 118 bytes fd 3 ret 0\n",
		"socket:[4]":          "",
		"pipe:[5]":            "",
		"[err: FD not found]": "7/7 read \"\" 118 bytes fd 3 ret 0 unresolved\n", // closed meanwhile by another thread
		"/tmp/gone (deleted)": "7/7 read \"/tmp/gone (deleted)\" 118 bytes fd 3 ret 0\n",
	} {
		got := told(t, event.Selection{Syscalls: "off"},
			datagram(kindRaw, 0, at(7, 7, 1), enters("read", 3)),
			datagram(kindRaw, 0, at(7, 7, 2), enters("read", 3), exits(118)),
			datagram(kindRead, 0, at(7, 7, 3), exits(118), num(3, nr("read")), text(5, path)))
		if got != want {
			t.Errorf("a read of %s is recorded as %q, want %q", path, got, want)
		}
	}
}

func TestClosePathFromEntryPoint(t *testing.T) {
	got := told(t, event.Selection{Syscalls: "off"},
		datagram(kindRaw, 0, at(7, 7, 1), enters("close", 3)),
		datagram(kindClose, 0, at(7, 7, 2), num(3, nr("close")), num(4, 3), text(5, "/tmp/x")),
		datagram(kindRaw, 0, at(7, 7, 3), enters("close", 3), exits(0)),
		datagram(kindRaw, 0, at(7, 7, 4), enters("close", 9)),
		datagram(kindClose, 0, at(7, 7, 5), num(3, nr("close")), num(4, 9), text(5, "[err: FD not found]")),
		datagram(kindRaw, 0, at(7, 7, 6), enters("close", 9), exits(-9)))
	expect(t, got, `7/7 close "/tmp/x" 0 bytes fd 3 ret 0`)
}

func TestCallWithoutDetailPoint(t *testing.T) {
	got := told(t, event.Selection{},
		datagram(kindRaw, 0, at(7, 7, 1), enters("openat", 9)),
		datagram(kindRaw, 0, at(7, 7, 2), enters("openat", 9), exits(4)),
		datagram(kindRaw, 0, at(7, 7, 3), enters("getppid")),
		datagram(kindRaw, 0, at(7, 7, 4), enters("getppid"), exits(1)))
	expect(t, got, "7/7 openat(9) = 4 in 1  unresolved", `7/7 open "" 0 bytes fd 4 ret 0 unresolved`, "7/7 getppid(0) = 1 in 1 ")
}

func TestLateDetailPointIsIgnored(t *testing.T) {
	b, p := newPage(t, event.Selection{Files: "off"})
	feed(t, b, datagram(kindRaw, 0, at(7, 7, 1), enters("openat", 9)))
	feed(t, b, datagram(kindRaw, 0, at(7, 7, 2), enters("openat", 9), exits(4)))
	b.settleAll()
	feed(t, b, datagram(kindOpen, 0, at(7, 7, 3), exits(4), num(3, nr("openat")), text(6, "/x")))
	expect(t, p.b.String(), "7/7 openat(9) = 4 in 1  unresolved")
}

func TestDroppedPoints(t *testing.T) {
	read := func(ns int64) []byte {
		return datagram(kindRead, 0, at(7, 7, ns), exits(5), num(3, nr("read")), text(5, "/x"))
	}
	for name, c := range map[string]struct {
		points [][]byte
		want   string
	}{
		"the first":      {[][]byte{datagram(kindRaw, 0, at(7, 7, 2), enters("read", 3), exits(5)), read(3)}, "7/7 read(3) = 5 in 0  partial"},
		"the second":     {[][]byte{datagram(kindRaw, 0, at(7, 7, 1), enters("read", 3)), read(3)}, "7/7 read(3) = 5 in 2 "},
		"all but third":  {[][]byte{read(3)}, "7/7 read(0) = 5 in 0  partial"},
		"all but first":  {[][]byte{datagram(kindRaw, 0, at(7, 7, 1), enters("read", 3)), datagram(kindRaw, 0, at(7, 7, 9), enters("pause"))}, "7/7 read(3) = 0 in 0  unfinished"},
		"all but second": {[][]byte{datagram(kindRaw, 0, at(7, 7, 2), enters("read", 3), exits(5))}, "7/7 read(3) = 5 in 0  partial unresolved"},
	} {
		t.Run(name, func(t *testing.T) { expect(t, told(t, event.Selection{Files: "off"}, c.points...), c.want) })
	}
}

func TestExecIsRecordedAtReturn(t *testing.T) {
	begin := [][]byte{
		datagram(kindRaw, 0, at(7, 7, 1), enters("execve")),
		datagram(kindExec, 0, at(7, 7, 2), text(2, "/usr/bin/dash"), text(3, "sh"), text(3, ""), text(3, "a\nb"), text(4, "SECRET=1")),
	}
	detail := datagram(kindExecve, 0, at(7, 7, 4), exits(0), num(3, nr("execve")), text(6, "/bin/sh"), text(7, "sh"))
	ok := append(begin, datagram(kindRaw, 0, at(7, 7, 3), enters("execve"), exits(0)), detail)
	expect(t, told(t, event.Selection{Syscalls: "off"}, ok...), `7/7 exec of 0, 1000:100 /usr/bin/dash ["sh" "" "a\nb"] in "/work" code 0`)

	failed := append(begin[:2:2], datagram(kindRaw, 0, at(7, 7, 3), enters("execve"), exits(-4)))
	if got := told(t, event.Selection{Syscalls: "off"}, failed...); got != "" {
		t.Errorf("a failed exec is recorded: %s", got)
	}
	// If the environment is not UTF-8, the exec point is missing.
	expect(t, told(t, event.Selection{Syscalls: "off"}, begin[0], ok[2], detail), `7/7 exec of 0, 0:0 /bin/sh ["sh"] in "/work" code 0`)
	// If the arguments are not UTF-8, both points are missing.
	expect(t, told(t, event.Selection{Syscalls: "off"}, begin[0], ok[2]), `7/7 exec of 0, 0:0  [] in "" code 0 unresolved`)
}

func TestLongArgumentListIsTruncated(t *testing.T) {
	fields := [][]byte{at(7, 7, 2), text(2, "/x")}
	for range maxArgs + 10 {
		fields = append(fields, text(3, "a"))
	}
	got := told(t, event.Selection{Syscalls: "off"},
		datagram(kindRaw, 0, at(7, 7, 1), enters("execve")), datagram(kindExec, 0, fields...),
		datagram(kindRaw, 0, at(7, 7, 3), enters("execve"), exits(0)))
	if n := strings.Count(got, `"a"`); n != maxArgs || !strings.HasSuffix(got, " cut\n") {
		t.Errorf("%d arguments are recorded, want %d: …%s", n, maxArgs, got[len(got)-20:])
	}
}

func TestProcessAndThreadLifecycle(t *testing.T) {
	got := told(t, event.Selection{Syscalls: "off"},
		datagram(kindClone, 0, at(7, 8, 1), num(3, 20), num(4, 20)),
		datagram(kindClone, 0, at(20, 20, 2), num(3, 21), num(4, 20), num(6, 0x10000)),
		datagram(kindTaskExit, 0, at(20, 21, 3)),
		datagram(kindTaskExit, 0, at(20, 20, 4), num(2, 5<<8)),
		datagram(kindExitNotify, 0, at(20, 20, 5), num(2, 5<<8)),
		datagram(kindClone, 0, at(7, 7, 6), num(3, 22), num(4, 22)),
		datagram(kindExitNotify, 0, at(22, 22, 7), num(2, 0x80|11)),
		datagram(kindTaskExit, 0, at(1, 1, 8), num(2, 1<<8)))
	expect(t, got,
		`20/20 fork of 7, 1000:100  [] in "" code 0`,
		`20/21 fork of 7, 1000:100  [] in "" code 0 thread`,
		`20/21 exit of 7, 1000:100  [] in "" code 0 thread`,
		`20/20 exit of 7, 1000:100  [] in "" code 5`,
		`22/22 fork of 7, 1000:100  [] in "" code 0`,
		`22/22 exit of 7, 1000:100  [] in "" code 0SIGSEGV`,
		`1/1 exit of 0, 1000:100  [] in "" code 1`)
}

func TestThreadNames(t *testing.T) {
	b, p := newPage(t, event.Selection{Files: "off"})
	p.names = true
	for _, d := range [][]byte{
		datagram(kindClone, 0, at(1, 1, 1), num(3, 7), num(4, 7)),
		datagram(kindRaw, 0, called(7, 7, ""), enters("prctl", 15)),
		datagram(kindRaw, 0, called(7, 7, "main"), enters("prctl", 15), exits(0)),
		datagram(kindClone, 0, at(7, 7, 1), num(3, 8), num(4, 7), num(6, 0x10000)),
		datagram(kindRaw, 0, called(7, 8, "main"), enters("prctl", 15)),
		datagram(kindRaw, 0, called(7, 8, "worker"), enters("prctl", 15), exits(0)),
		datagram(kindClone, 0, at(7, 8, 1), num(3, 9), num(4, 9)),
		datagram(kindRaw, 0, called(7, 7, "main"), enters("prctl", 15)), // sets a name that is not UTF-8
		datagram(kindRaw, 0, at(7, 7, 1), enters("getppid")),
		datagram(kindRaw, 0, at(7, 7, 1), enters("getppid"), exits(1)),
	} {
		feed(t, b, d)
	}
	expect(t, p.b.String(), "fork ", "prctl main", "fork main", "prctl worker", "fork worker", "gap ", "prctl ", "getppid ")
}

func TestProcessWithoutClonePoint(t *testing.T) {
	got := told(t, event.Selection{},
		datagram(kindRaw, 0, at(30, 30, 1), enters("getppid")),
		datagram(kindRaw, 0, at(30, 30, 2), enters("getppid"), exits(0)))
	expect(t, got, `30/30 exec of 0, 0:0  [] in "" code 0 unresolved`, "30/30 getppid(0) = 0 in 1 ")
}

func TestTimestampsAreMonotonic(t *testing.T) {
	b, _ := newPage(t, event.Selection{})
	last := int64(0)
	b.sink = watcher(func(e *event.Event) {
		if e.NS < last {
			t.Errorf("an event at %d follows one at %d", e.NS, last)
		}
		last = e.NS
	})
	for _, ns := range []int64{10, 30, 20, 40} {
		feed(t, b, datagram(kindRaw, 0, at(7, int32(ns), ns), enters("getppid")))
		feed(t, b, datagram(kindRaw, 0, at(7, int32(ns), ns+1), enters("getppid"), exits(1)))
	}
	if last != 41 {
		t.Errorf("the last event is at %d, want 41", last)
	}
}

// A watcher is a log that only checks events.
type watcher func(*event.Event)

func (watcher) HasRoom() bool                                    { return true }
func (watcher) Last() uint64                                     { return 0 }
func (watcher) Written() uint64                                  { return 0 }
func (watcher) FlushSoon()                                       {}
func (watcher) Kept(int64, event.Type, func(*event.Event)) error { return nil }
func (w watcher) Append(e *event.Event)                          { w(e) }

func TestSandboxEndEndsProcesses(t *testing.T) {
	b, p := newPage(t, event.Selection{})
	feed(t, b, datagram(kindClone, 0, at(1, 1, 1), num(3, 20), num(4, 20)))
	feed(t, b, datagram(kindRaw, 0, at(20, 20, 2), enters("nanosleep", 3)))
	p.b.Reset()
	b.processes = map[int32]*process{20: b.processes[20]}
	b.end()
	expect(t, p.b.String(), "20/20 nanosleep(3) = 0 in 0  unfinished", `20/20 exit of 1, 1000:100  [] in "" code 0SIGKILL`)
}

func TestExitIsUnfinishedCall(t *testing.T) {
	got := told(t, event.Selection{},
		datagram(kindRaw, 0, at(7, 7, 1), enters("exit_group", 3)),
		datagram(kindRaw, 0, at(7, 7, 1), enters("exit_group", 3), exits(0)))
	expect(t, got, "7/7 exit_group(3) = 0 in 0  unfinished")
}

func TestResidentsAreRecordedOnce(t *testing.T) {
	all, err := parseResidents(strings.NewReader("PROCFS DUMP\n\n" +
		`{"exe":"/init","args":["/init","x"],"cwd":"/","clone_ts":50,"status":{"comm":"init","pid":1,"uid":{"real":0},"gid":{"real":0}},"maps":[{}]}` + "\n\n" +
		`{"exe":"/bin/a","args":["a"],"clone_ts":150,"status":{"comm":"a","pid":9,"ppid":1}}` + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	b, p := newPage(t, event.Selection{})
	clear(b.processes)
	b.residents(all, 100)
	b.residents(all, 100)
	expect(t, p.b.String(), `1/1 exec of 0, 0:0 /init ["/init" "x"] in "/" code 0 existing`)
}

func TestSampling(t *testing.T) {
	var all [][]byte
	for range 100 {
		all = append(all, datagram(kindRaw, 0, at(7, 7, 1), enters("getppid")), datagram(kindRaw, 0, at(7, 7, 1), enters("getppid"), exits(1)),
			datagram(kindRaw, 0, at(7, 7, 1), enters("getuid")), datagram(kindRaw, 0, at(7, 7, 1), enters("getuid"), exits(1)))
	}
	got := told(t, event.Selection{Sample: 10, Allow: []string{"getuid"}}, all...)
	if sampled, exempt := strings.Count(got, "getppid"), strings.Count(got, "getuid"); sampled != 10 || exempt != 100 {
		t.Errorf("of 100 calls each, %d and %d are recorded, want 10 and all exempt ones", sampled, exempt)
	}
}

func TestOnlyNeededPointsAreRequested(t *testing.T) {
	asked := func(s event.Selection) string {
		return string(chosen(t, s).session)
	}
	// prctl has points at entry and return.
	if n := strings.Count(asked(event.Selection{}), "process_name"); n != 2 {
		t.Errorf("the name is requested at %d points, want 2", n)
	}
	for _, c := range []struct {
		name      string
		s         event.Selection
		with, not []string
	}{
		{"all", event.Selection{}, []string{"sysno/39/enter", "sysno/0/exit", "read/exit", "close/enter"}, []string{`"env`}},
		{"no files", event.Selection{Syscalls: "off", Files: "off"}, []string{"sentry/execve", "execve/exit"}, []string{"sysno/39/", "read/exit", "openat"}},
		{"files alone", event.Selection{Syscalls: "off"}, []string{"read/exit", "sysno/87/exit"}, []string{"sysno/39/"}},
		{"security", event.Selection{Syscalls: "security", Files: "off"}, []string{"connect/exit"}, []string{"sysno/39/", "read/exit"}},
		{"ignored", event.Selection{Ignore: []string{"getpid"}}, []string{"read/exit"}, []string{"sysno/39/"}},
		{"allowed", event.Selection{Syscalls: "off", Files: "off", Allow: []string{"getpid"}}, []string{"sysno/39/exit"}, []string{"read/exit"}},
		{"held", event.Selection{}, []string{`"retries":1073741824`}, nil},
		{"counted", event.Selection{OnOverload: "count"}, nil, []string{"retries"}},
	} {
		got := asked(c.s)
		for _, w := range c.with {
			if !strings.Contains(got, w) {
				t.Errorf("%s: %s is not requested", c.name, w)
			}
		}
		for _, n := range c.not {
			if strings.Contains(got, n) {
				t.Errorf("%s: %s is requested", c.name, n)
			}
		}
	}
}

func TestClockIsBoundedByHostTime(t *testing.T) {
	c := clock{first: 100, last: 1000, offset: 5000}
	for wall, want := range map[int64]int64{5500: 500, 9000: 1000, 0: 100, -1 << 62: 100} {
		if got := c.ns(wall); got != want {
			t.Errorf("ns(%d) = %d, want %d", wall, got, want)
		}
	}
	if got := c.past(5040); got != 40 {
		t.Errorf("past(5040) = %d, want 40", got)
	}
}

func FuzzAnythingASandboxMaySend(f *testing.F) {
	f.Add(datagram(kindRaw, 3, at(7, 8, 100), enters("getppid", 5)), datagram(kindRaw, 4, at(7, 8, 142), enters("getppid", 5), exits(-1)))
	f.Add(datagram(kindOpen, 0, at(7, 7, 3), exits(4), num(3, nr("openat")), text(5, "/a"), text(6, "b\xff")), datagram(kindExec, 0, at(7, 7, 2), text(2, "/x"), text(3, "sh")))
	f.Add(datagram(kindClone, 0, at(7, 8, 1), num(3, 20), num(4, 20)), datagram(kindExitNotify, 0, at(20, 20, 5), num(2, 5<<8)))
	f.Add(datagram(kindConnect, 0, at(1, 1, 1), exits(0), num(3, 42), text(6, "\x02\x00\x00P\x7f\x00\x00\x01")), []byte{9, 0})
	everything := chosen(f, event.Selection{})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		b := newBook("j-test", &page{}, func(int64) bool { return false })
		b.choice, b.clock = everything, clock{last: 1 << 60}
		for _, d := range [][]byte{first, second, first} {
			k, _, payload, err := header(d)
			if err != nil {
				continue
			}
			var p point
			if p.parse(k, payload) == nil {
				b.point(&p)
			}
		}
		b.end()
		if len(b.held) != 0 || len(b.tasks) != 0 {
			t.Errorf("%d calls are pending and %d threads exist after the end, want none", len(b.held), len(b.tasks))
		}
	})
}

func FuzzAnythingRunscMayPrint(f *testing.F) {
	f.Add([]byte("SESSIONS (1)\n\"Default\"\n\tSink: \"remote\", dropped: 12\n"))
	f.Add([]byte("Name: syscall/openat/exit, optional fields: [fd_path|x], context fields: [time]\n"))
	f.Add([]byte("PROCFS DUMP\n\n{\"status\":{\"pid\":1}}\n"))
	f.Fuzz(func(t *testing.T, out []byte) {
		parseDropped(out)
		parsePoints(strings.NewReader(string(out)))
		parseResidents(strings.NewReader(string(out)))
	})
}

func TestDroppedFromSessionList(t *testing.T) {
	if n, err := parseDropped([]byte("SESSIONS (1)\n\"Default\"\n\tSink: \"remote\", dropped: 12\n")); n != 12 || err != nil {
		t.Errorf("dropped = %d, %v, want 12", n, err)
	}
	for _, out := range []string{"SESSIONS (0)\n", "dropped: x", "dropped: 99999999999"} {
		if n, err := parseDropped([]byte(out)); err == nil {
			t.Errorf("dropped of %q = %d", out, n)
		}
	}
}

func BenchmarkACall(b *testing.B) {
	book := newBook("j-test", watcher(func(*event.Event) {}), func(int64) bool { return false })
	book.choice, book.clock = chosen(b, event.Selection{}), clock{last: 1 << 60}
	points := [][]byte{
		datagram(kindRaw, 0, at(7, 7, 1), enters("read", 3, 4096, 4096)),
		datagram(kindRaw, 0, at(7, 7, 2), enters("read", 3, 4096, 4096), exits(118)),
		datagram(kindRead, 0, at(7, 7, 3), exits(118), num(3, nr("read")), num(4, 3), text(5, "/etc/passwd"), num(6, 4096)),
	}
	var p point
	b.ReportAllocs()
	for b.Loop() {
		for _, d := range points {
			k, _, payload, _ := header(d)
			if err := p.parse(k, payload); err != nil {
				b.Fatal(err)
			}
			book.point(&p)
		}
	}
}
