package event_test

import (
	"errors"
	"strings"
	"testing"

	"glasshouse/fault"
	"glasshouse/observe/event"
)

// Events of a jail, at least one of each type.
var (
	opened = event.Event{Type: event.Syscall, Seq: 1, PID: 42, TID: 43, HostPID: 9042, Comm: "python3", NR: 257, Name: "openat",
		Path: "passwd", Real: "/etc/passwd", Ret: -13, Dur: 12_000_000, FD: -1}
	denied = event.Event{Type: event.Syscall, Seq: 2, Flags: event.Denied, PID: 42, TID: 42, Comm: "python3", NR: 321, Name: "bpf", Ret: -1, FD: -1}
	died   = event.Event{Type: event.Syscall, Seq: 3, Flags: event.Unfinished, PID: 42, TID: 42, Comm: "python3", NR: 0, Name: "read", FD: -1}
	joined = event.Event{Type: event.Syscall, Seq: 4, Flags: event.Partial, PID: 42, TID: 42, Comm: "sleep", NR: 35, Name: "nanosleep", FD: -1}
	wrote  = event.Event{Type: event.File, Seq: 5, PID: 42, TID: 42, Comm: "python3", Op: event.OpWrite, Path: "/work/out.txt", Bytes: 1024, FD: 3}
	moved  = event.Event{Type: event.File, Seq: 6, PID: 44, TID: 44, Comm: "mv", Op: event.OpRename, Path: "/work/a", To: "/tmp/a b, c", FD: -1}
	sent   = event.Event{Type: event.Net, Seq: 7, PID: 45, TID: 45, Comm: "curl", Dir: event.Egress, Proto: "tcp",
		Src: "10.0.0.2:54321", Dst: "93.184.216.34:443", Host: "api.Example.com", Bytes: 512, FD: -1}
	six   = event.Event{Type: event.Net, Seq: 8, Dir: event.Ingress, Proto: "udp", Src: "[2001:db8::1]:53", Dst: "[fd00::2]:4000", Bytes: 80, FD: -1}
	arp   = event.Event{Type: event.Net, Seq: 9, Dir: event.Egress, Proto: "arp", Src: "02:00:00:00:00:01", Dst: "10.0.0.1", FD: -1}
	began = event.Event{Type: event.Proc, Seq: 10, PID: 45, TID: 45, PPID: 42, Comm: "git", UID: 1000, Op: event.OpExec,
		Exe: "/usr/bin/git", Argv: []string{"git", "push", "-f", "https://example.com/r"}, Cwd: "/work", FD: -1}
	exited = event.Event{Type: event.Proc, Seq: 11, PID: 45, TID: 45, PPID: 42, Comm: "git", Op: event.OpExit, Code: 3, FD: -1}
	killed = event.Event{Type: event.Proc, Seq: 12, PID: 46, TID: 47, PPID: 42, Comm: "node", Op: event.OpExit, Signal: "SIGKILL", Flags: event.Thread, FD: -1}
	used   = event.Event{Type: event.Usage, Seq: 13, CPU: 5, FD: -1}
	branch = event.Event{Type: event.Lineage, Seq: 15, Op: event.OpBranch, Snapshot: "s-7k2mwq4x9dpa", Parent: "j-3f2akm9x7qpw", ParentSeq: 14, FD: -1}
	lost   = event.Event{Type: event.Gap, Seq: 14, Source: event.Net, Lost: 12, Reason: "ring full", FD: -1}
)

var day = []struct {
	name string
	e    *event.Event
}{
	{"opened", &opened}, {"denied", &denied}, {"died", &died}, {"joined", &joined}, {"wrote", &wrote}, {"moved", &moved},
	{"sent", &sent}, {"six", &six}, {"arp", &arp}, {"began", &began}, {"exited", &exited}, {"killed", &killed}, {"used", &used}, {"branch", &branch}, {"lost", &lost},
}

func TestFilterMatch(t *testing.T) {
	for _, tt := range []struct{ q, want, types string }{
		{"", "opened denied died joined wrote moved sent six arp began exited killed used branch lost", "syscall file net proc usage lineage"},
		{"type:net", "sent six arp", "net"},
		{"type:net,gap", "sent six arp lost", "net"},
		{"type:gap", "lost", "gap"},
		{"type:syscall,gap", "opened denied died joined", "syscall"}, // the gap reports packets
		{"-type:syscall,gap,usage,lineage", "wrote moved sent six arp began exited killed", "file net proc"},
		{"type:usage", "used", "usage"},
		{"type:lineage", "branch", "lineage"},
		{"snapshot:s-7k2mwq4x9dpa", "branch", "lineage"},
		{"snapshot:s-7k2mwq4x9dpb", "", "lineage"},
		{"parent:j-3f2*", "branch", "lineage"},
		{"op:branch,rewind", "branch", "file proc lineage"},

		{"pid:42", "opened denied died joined wrote lost", "syscall file net proc"},
		{"pid:44,46", "moved killed lost", "syscall file net proc"},
		{"-pid:42 -type:gap", "moved sent six arp began exited killed used branch", "syscall file net proc usage lineage"},
		{"tid:43..47 type:syscall,proc", "opened began exited killed", "syscall proc"},
		{"host_pid:>9000", "opened lost", "syscall file net proc"},
		{"pid:0", "lost", "syscall file net proc"}, // the process of the packet is unknown
		{"ppid:42", "began exited killed", "proc"},
		{"uid:1000", "began", "proc"},
		{"comm:python3 type:file", "wrote", "file"},
		{"comm:py*,m* -type:gap", "opened denied died wrote moved", "syscall file net proc"},
		{"comm:pyth", "lost", "syscall file net proc"},

		{"name:openat", "opened", "syscall"},
		{"name:open*,read", "opened died", "syscall"},
		{"nr:321", "denied", "syscall"},
		{"ret:EPERM", "denied", "syscall file"},
		{"ret:eacces", "opened", "syscall file"},
		{"ret:<0", "opened denied", "syscall file"},
		{"ret:-13..-1", "opened denied", "syscall file"},
		{"ret:0 type:file", "wrote moved", "file"},
		{"-ret:<0 type:syscall", "died joined", "syscall"},
		{"dur:>10ms", "opened", "syscall"},
		{"dur:<1ms", "denied died", "syscall"}, // not joined: its start is unknown
		{"dur:1ms..12ms", "opened", "syscall"},
		{"flag:denied", "denied lost", "syscall file net proc usage lineage"},
		{"flag:thread,partial type:proc", "killed", "proc"},

		{"op:write", "wrote", "file proc lineage"},
		{"op:exec,rename", "moved began", "file proc lineage"},
		{"bytes:>=1024", "wrote lost", "file net"},
		{"bytes:<100 type:net", "six arp", "net"},
		{"bytes:0 type:file", "", "file"}, // rename has no number of bytes
		{"path:/work", "wrote moved", "syscall file"},
		{"path:/work/", "wrote moved", "syscall file"},
		{"path:/wor", "", "syscall file"},
		{"path:/", "opened wrote moved", "syscall file"},
		{"path:passwd", "opened", "syscall file"},
		{"path:/etc/passwd", "opened", "syscall file"}, // matches Real
		{"path:*.txt", "wrote", "syscall file"},
		{"path:/w*/*t", "wrote", "syscall file"},
		{`path:"/tmp/a b, c"`, "moved", "syscall file"}, // matches To
		{`path:/tmp/a\ b\,*`, "moved", "syscall file"},
		{`path:"/tmp/*"`, "moved", "syscall file"},
		{`path:/tmp/\*`, "", "syscall file"},
		{"-path:* type:syscall", "denied died joined", "syscall"},

		{"host:api.example.com", "sent lost", "net"},
		{"host:*.example.com", "sent lost", "net"},
		{"host:*.API.example.com.", "lost", "net"},
		{"host:example.com", "lost", "net"},
		{"host:a*i.*m*.com", "sent lost", "net"},
		{"host:* -type:gap", "sent", "net"},
		{"-host:* type:net", "six arp", "net"},
		{"dst:93.184.216.34", "sent lost", "net"},
		{"dst:93.184.0.0/16:443", "sent lost", "net"},
		{"dst:93.184.216.34:80", "lost", "net"},
		{"dst:10.0.0.0/8 type:net", "arp", "net"},
		{"src:2001:db8::/32", "six lost", "net"},
		{"src:[2001:db8:0::1]:53", "six lost", "net"},
		{"src:[2001:db8::/32]:54", "lost", "net"},
		{"src:0.0.0.0/0,::/0 type:net", "sent six", "net"},
		{"port:443", "sent lost", "net"},
		{"port:1..1024,4000", "sent six lost", "net"},
		{"proto:arp", "arp lost", "net"},
		{"dir:ingress", "six lost", "net"},

		{"exe:/usr", "began", "proc"},
		{"exe:*/git", "began", "proc"},
		{"argv:push", "began", "proc"},
		{`argv:"git push"`, "began", "proc"},
		{`argv:"sh -f http"`, "began", "proc"},
		{`argv:"push  -f"`, "", "proc"},
		{"argv:gitpush", "", "proc"},
		{"argv:git*example", "began", "proc"},
		{"argv:example*git", "", "proc"},
		{"exit_code:3", "exited", "proc"},
		{"exit_code:0", "", "proc"}, // excludes termination by a signal, and events other than exit
		{"signal:SIGKILL", "killed", "proc"},
		{"signal:kill,TERM", "killed", "proc"},
		{"signal:9", "killed", "proc"},
		{"signal:*", "killed", "proc"},
		{"seq:>=13", "used branch lost", "syscall file net proc usage lineage"},
		{"seq:1..3", "opened denied died", "syscall file net proc usage lineage"},

		{"passwd", "opened lost", "syscall file net proc"},
		{"/work -type:gap", "wrote moved", "syscall file net proc"},
		{"Example -type:gap", "sent", "syscall file net proc"},
		{`"https://example.com"`, "began lost", "syscall file net proc"},
		{"git,node type:proc", "began exited killed", "proc"},
		{"-git type:proc", "killed", "proc"},
		{"type:net host:*.example.com ret:<0", "", ""},
		{"host:x path:/y", "", ""},
		{"type:gap host:x", "lost", "gap"},
		{"type:gap path:/x", "", "gap"},
		{"type:net,gap host:x", "lost", "net"},
	} {
		f, err := event.ParseFilter(tt.q)
		if err != nil {
			t.Errorf("%s: %v", tt.q, err)
			continue
		}
		var got []string
		for _, d := range day {
			if f.Match(d.e) {
				got = append(got, d.name)
			}
		}
		if got, want := strings.Join(got, " "), tt.want; got != want {
			t.Errorf("%s matches %q, want %q", tt.q, got, want)
		}
		var types []string
		for _, ty := range f.Types() {
			types = append(types, ty.String())
		}
		if got := strings.Join(types, " "); got != tt.types {
			t.Errorf("%s has the types %q, want %q", tt.q, got, tt.types)
		}
	}
}

func TestParseFilterErrors(t *testing.T) {
	for q, want := range map[string]string{
		"colour:red":               `"colour:red": unknown key "colour"; keys are argv, bytes, comm, dir, dst, dur, exe, exit_code, flag, host, host_pid, name, nr, op, parent, path, pid, port, ppid, proto, ret, seq, signal, snapshot, src, tid, type, uid. To search for this text, put it in quotes`,
		"pid:42 type:packet":       `"type:packet": "packet" is not one of [syscall file net proc gap usage lineage]`,
		"pid:python":               `"pid:python": "python" is not a number; write 3, <3, >=3 or 3..5`,
		"pid:":                     `"pid:": a value is missing`,
		"pid:1,":                   `"pid:1,": a value is missing`,
		`path:""`:                  `a value is missing`,
		`path:"/a b`:               `"path:\"/a b": a quote is not closed`,
		`path:a\`:                  `the value ends in a backslash; write a backslash as \\`,
		"ret:EPREM":                `"EPREM" is neither a number nor the name of an error; write EPERM, 3, <0, >=3 or 3..5`,
		"ret:<EPERM":               `is neither a number`,
		"ret:5..3":                 `the range from 5 to 3 is empty; write the smaller value first`,
		"pid:<>3":                  `"<>" is not a comparison operator; use <, <=, > or >=`,
		"seq:99999999999999999999": `is not a number`,
		"dur:10":                   `"10" is not a duration; write >10ms, <=1.5s or 1us..20us`,
		"dst:example.com":          `"example.com" is not an address; write 10.0.0.2, 10.0.0.0/8, 10.0.0.2:443, ::1 or [::1]:80`,
		"dst:10.0.0.1:99999":       `is not an address`,
		"dst:10.0.0.0/33":          `is not an address`,
		"signal:SIGFOO":            `"SIGFOO" is not a signal; write SIGKILL, KILL or 9`,
		"op:unlink":                `"unlink" is not one of [open create close`,
		"dir:out":                  `"out" is not one of [egress ingress loopback]`,
		"flag:odd":                 `"odd" is not one of [denied unfinished`,
		"10.0.0.1:80":              `to search for text with a colon, put it in quotes`,
		"-":                        `"-": a value is missing`,
		"host:.":                   `a value is missing`,
		"host:..":                  `a value is missing`,
		strings.Repeat("a", 5000):  `5000 bytes exceed the maximum filter size of 4096`,
	} {
		_, err := event.ParseFilter(q)
		if !errors.Is(err, fault.Invalid) || fault.FieldOf(err) != "q" || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v\nwant %s", q, err, want)
		}
	}
}

func TestNotPID(t *testing.T) {
	for text, want := range map[string]int32{
		"-pid:1": 1, " -pid:42 ": 42,
		"": 0, "pid:1": 0, "-pid:1,2": 0, "-pid:1..3": 0, "-pid:<2": 0, "-pid:0": 0, "-tid:1": 0, "-pid:1 type:file": 0, "-pid:4294967297": 0,
	} {
		f, err := event.ParseFilter(text)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if n, ok := f.NotPID(); ok != (want != 0) || ok && n != want {
			t.Errorf("NotPID of %q = %d, %v; want %d, %v", text, n, ok, want, want != 0)
		}
	}
}
