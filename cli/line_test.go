package cli

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"glasshouse/internal/text"
	"glasshouse/observe/event"
)

// line formats an event, without the time.
func line(e event.Event) string {
	_, what, _ := strings.Cut(eventLine(screen{}, &e), " ")
	return strings.Join(strings.Fields(what), " ")
}

func TestEventLines(t *testing.T) {
	call := func(name string, ret int64, args ...uint64) event.Event {
		e := event.Event{Type: event.Syscall, PID: 42, Comm: "python3", Name: name, Ret: ret, Dur: 1234567}
		copy(e.Args[:], args)
		return e
	}
	with := func(e event.Event, f func(*event.Event)) event.Event { f(&e); return e }
	const cwd = uint64(0xffffff9c) // -100, as a 32-bit register contains it
	for want, e := range map[string]event.Event{
		`42 python3 openat(AT_FDCWD, "/etc/passwd", 524288) = 3 <1.23ms>`:           with(call("openat", 3, cwd, 0x7ffc0001000, 0x80000), func(e *event.Event) { e.Path = "/etc/passwd" }),
		`42 python3 openat(AT_FDCWD, "/etc/shadow") = EACCES <1.23ms>`:              with(call("openat", -13, 1<<64-100, 0x7ffc0001000), func(e *event.Event) { e.Path = "/etc/shadow" }),
		`42 python3 rename("/a", "/b") = 0 <1.23ms>`:                                with(call("rename", 0, 0x7f0000000000, 0x7f0000000008), func(e *event.Event) { e.Path, e.To = "/a", "/b" }),
		`42 python3 connect(3, "10.0.0.1:80", 16) = ECONNREFUSED <1.23ms>`:          with(call("connect", -111, 3, 0x7f0000000000, 16), func(e *event.Event) { e.Addr = "10.0.0.1:80" }),
		`42 python3 mmap(0, 4096, 3, 34, -1) = 0x7f0000000000 <1.23ms>`:             call("mmap", 0x7f0000000000, 0, 4096, 3, 34, 0xffffffff),
		`42 python3 exit_group(1) = ? [unfinished]`:                                 with(call("exit_group", 0, 1), func(e *event.Event) { e.Flags, e.Dur = event.Unfinished, 0 }),
		`42 python3 bpf/i386(5) = EPERM <1.23ms> [denied raced]`:                    with(call("bpf", -1, 5), func(e *event.Event) { e.ABI, e.Flags = "i386", event.Denied|event.Raced }),
		`42 python3 open("/link") -> "/real" = 4 <1.23ms>`:                          with(call("open", 4, 0x7f0000000000), func(e *event.Event) { e.Path, e.Real = "/link", "/real" }),
		`42 python3 nosuch(7, "/odd") = 0 <1.23ms>`:                                 with(call("nosuch", 0, 7), func(e *event.Event) { e.Path = "/odd" }),
		`42 sh write "/tmp/out" 1 byte`:                                             {Type: event.File, PID: 42, Comm: "sh", Op: "write", Path: "/tmp/out", Bytes: 1, FD: 1},
		`42 sh rename "/a" -> "/b" = EXDEV`:                                         {Type: event.File, PID: 42, Comm: "sh", Op: "rename", Path: "/a", To: "/b", Ret: -18, FD: -1},
		`7 curl tcp 10.0.0.2:54321 -> 93.184.216.34:443 (example.com) 60 bytes SYN`: {Type: event.Net, PID: 7, Comm: "curl", Dir: "egress", Proto: "tcp", Src: "10.0.0.2:54321", Dst: "93.184.216.34:443", Host: "example.com", Bytes: 60, TCP: "SYN"},
		`- - udp 10.0.0.2:1 <- 9.9.9.9:53 100 bytes in 2 packets`:                   {Type: event.Net, Dir: "ingress", Proto: "udp", Dst: "10.0.0.2:1", Src: "9.9.9.9:53", Bytes: 100, Packets: 2},
		`43 sh fork by 42`:                                                               {Type: event.Proc, PID: 43, PPID: 42, Comm: "sh", Op: "fork"},
		`43 curl exec "/usr/bin/curl" "curl" "a b"`:                                      {Type: event.Proc, PID: 43, Comm: "curl", Op: "exec", Exe: "/usr/bin/curl", Argv: []string{"curl", "a b"}},
		`43 curl exit 3, user 1.5ms, system 20µs`:                                        {Type: event.Proc, PID: 43, Comm: "curl", Op: "exit", Code: 3, UserNS: 1500000, SystemNS: 20000},
		`43 curl exit by SIGKILL, user 0s, system 0s`:                                    {Type: event.Proc, PID: 43, Comm: "curl", Op: "exit", Signal: "SIGKILL"},
		`- - -- 12 syscall events are missing here: ring full`:                           {Type: event.Gap, Source: event.Syscall, Lost: 12, Reason: "ring full"},
		`- - -- an unknown number of net events are missing here: gone`:                  {Type: event.Gap, Source: event.Net, Lost: -1, Reason: "gone"},
		`- - branch s-7k2mwq4x9dpa of j-3f2akm9x7qpw at 9`:                               {Type: event.Lineage, Op: event.OpBranch, Snapshot: "s-7k2mwq4x9dpa", Parent: "j-3f2akm9x7qpw", ParentSeq: 9},
		`- - uses: cpu 1.5s, memory 2 KiB, 1 process, disk 0 B, received 0 B, sent 10 B`: {Type: event.Usage, CPU: 1500000000, Memory: 2048, PIDs: 1, Tx: 10},
	} {
		if got := line(e); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	long := line(event.Event{Type: event.File, Op: "open", Path: strings.Repeat("x", 5000)})
	if len(long) > 2*maxQuoted || !strings.Contains(long, "…") {
		t.Errorf("a path of 5000 bytes takes %d bytes of a line", len(long))
	}
}

func TestShortDurations(t *testing.T) {
	for d, want := range map[time.Duration]string{999: "999ns", 1234567: "1.23ms", 123456789: "123ms", 59999999999: "1m0s", 100 * time.Hour: "100h0m0s", 0: "0s"} {
		if got := short(d); got != want {
			t.Errorf("short(%d) = %s, want %s", d, got, want)
		}
	}
}

// controlsTerminal reports whether a terminal would do more with s than show it.
func controlsTerminal(s string) bool {
	return !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool {
		return r < ' ' || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0x2028 || r == 0x2029
	})
}

func TestEventTextIsEscaped(t *testing.T) {
	evil := "\x1b]0;owned\a\x1b[2J\r\n\u202egnp.exe\u009b31m\xff\u2028\x7f\x00"
	for _, ty := range event.Types {
		e := event.Event{
			Type: ty, PID: 1, Comm: evil, Name: evil, ABI: evil, Addr: evil, Op: evil, Path: evil, To: evil, Real: evil, Dir: evil,
			Proto: evil, Src: evil, Dst: evil, Host: evil, Iface: evil, TCP: evil, Exe: evil, Argv: []string{evil}, Cwd: evil, Signal: evil, Reason: evil,
		}
		for _, op := range []string{evil, event.OpExec, event.OpExit, event.OpFork} {
			e.Op = op
			if got := eventLine(screen{}, &e); controlsTerminal(got) {
				t.Errorf("%s %q: %q", ty, op, got)
			}
		}
	}
}

func FuzzEventLine(f *testing.F) {
	for _, s := range []string{
		`{"type":"syscall","seq":1,"ts":1,"pid":1,"name":"openat","args":[1,2,3],"ret":-2,"path":"\u001b[2J"}`,
		`{"type":"proc","op":"exec","pid":2,"argv":["\udcff"],"exe":"/x"}`, `{"type":"gap","source":"net","lost":-1}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var e event.Event
		if event.Parse(raw, &e) != nil {
			return
		}
		if got := eventLine(screen{}, &e); controlsTerminal(got) {
			t.Errorf("%q", got)
		}
	})
}

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"plain ünïcode 漢字": "plain ünïcode 漢字", "a\tb\nc\rd": `a\tb\nc\rd`, "\x1b[31m": `\x1b[31m`, "\xff\xfe": `\xff\xfe`,
		"\u202e": `\u202e`, "\u009b": `\u009b`, "a\u200bb": `a\u200bb`, "": "",
	} {
		if got := text.Visible(in); got != want {
			t.Errorf("text.Visible(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestPageFitsScreen(t *testing.T) {
	s := screen{Writer: &strings.Builder{}}
	if got := s.page("a\nb\n"); got != "a\nb\n\n" {
		t.Errorf("a page written to a file is %q", got)
	}
	s.terminal = true
	if got := s.page("a\nb\n"); got != "\x1b[H\x1b[2Ja\nb\n" {
		t.Errorf("a page on a terminal is %q", got)
	}
}
