package report_test

import (
	"io"
	"time"

	"glasshouse/observe/event"
	"glasshouse/observe/report"
)

const jail = "j-abcdefghijkm"

// A session builds the events of a jail as its observers record them.
type session struct {
	events []event.Event
	ns     int64
	boot   time.Time
}

func newSession() *session {
	return &session{boot: time.Date(2025, 3, 14, 9, 26, 53, 0, time.UTC)}
}

// wait advances the clock.
func (s *session) wait(d time.Duration) *session {
	s.ns += int64(d)
	return s
}

// add appends e with its sequence number and time.
func (s *session) add(e event.Event) *session {
	s.ns += 1000
	e.Seq, e.Jail, e.NS = uint64(len(s.events)+1), jail, s.ns
	e.TS = s.boot.Add(time.Duration(s.ns)).UnixMilli()
	if e.TID == 0 {
		e.TID = e.PID
	}
	if e.PID != 0 && e.HostPID == 0 {
		e.HostPID = e.PID + 70000
	}
	s.events = append(s.events, e)
	return s
}

func (s *session) fork(ppid, pid int32, comm string) *session {
	return s.add(event.Event{Type: event.Proc, Op: event.OpFork, PID: pid, PPID: ppid, Comm: comm, Begin: s.ns + 1000})
}

func (s *session) exec(pid int32, exe string, argv ...string) *session {
	p := s.last(pid)
	comm := exe
	for i := len(exe) - 1; i >= 0; i-- {
		if exe[i] == '/' {
			comm = exe[i+1:]
			break
		}
	}
	return s.add(event.Event{Type: event.Proc, Op: event.OpExec, PID: pid, PPID: p.PPID, UID: 1000, GID: 1000, Comm: comm,
		Exe: exe, Argv: argv, Cwd: "/work", Begin: p.Begin})
}

func (s *session) exit(pid int32, code int32, signal string) *session {
	p := s.last(pid)
	return s.add(event.Event{Type: event.Proc, Op: event.OpExit, PID: pid, PPID: p.PPID, UID: p.UID, GID: p.GID, Comm: p.Comm,
		Begin: p.Begin, Code: code, Signal: signal, UserNS: 12e6, SystemNS: 3e6, RSS: 9 << 20})
}

// last returns the last event of a process.
func (s *session) last(pid int32) event.Event {
	for i := len(s.events) - 1; i >= 0; i-- {
		if e := s.events[i]; e.Type == event.Proc && e.PID == pid && e.Flags&event.Thread == 0 {
			return e
		}
	}
	return event.Event{}
}

func (s *session) call(pid int32, name string, ret int64, dur time.Duration, more ...func(*event.Event)) *session {
	e := event.Event{Type: event.Syscall, PID: pid, Comm: s.last(pid).Comm, Name: name, Ret: ret, Dur: int64(dur), FD: -1}
	for _, f := range more {
		f(&e)
	}
	return s.add(e)
}

func args(a ...uint64) func(*event.Event) { return func(e *event.Event) { copy(e.Args[:], a) } }
func path(p string) func(*event.Event)    { return func(e *event.Event) { e.Path = p } }
func addr(a string) func(*event.Event)    { return func(e *event.Event) { e.Addr = a } }
func flagged(f event.Flags) func(*event.Event) {
	return func(e *event.Event) { e.Flags |= f }
}

func (s *session) file(pid int32, op, path string, bytes int64) *session {
	return s.add(event.Event{Type: event.File, PID: pid, Comm: s.last(pid).Comm, Op: op, Path: path, Bytes: bytes, FD: 3})
}

func (s *session) packet(pid int32, dir, proto, src, dst, host, tcp string, bytes int64) *session {
	return s.add(event.Event{Type: event.Net, PID: pid, Comm: s.last(pid).Comm, Dir: dir, Proto: proto, Src: src, Dst: dst,
		Host: host, TCP: tcp, Bytes: bytes, Iface: "eth0"})
}

func (s *session) usage(cpu time.Duration, memory, pids, disk, rx, tx int64) *session {
	return s.add(event.Event{Type: event.Usage, CPU: int64(cpu), Memory: memory, PIDs: pids, Disk: disk, Rx: rx, Tx: tx})
}

// agent returns a small session that is typical for an agent: it runs its program, installs a
// package, has some operations denied, and builds and runs a helper.
func agent() *session {
	s := newSession()
	s.add(event.Event{Type: event.Proc, Op: event.OpExec, Flags: event.Existing, PID: 1, Comm: "glasshouse-init", Exe: "/.glasshouse/init",
		Argv: []string{"/.glasshouse/init"}, Cwd: "/", Begin: 1})
	s.usage(0, 8<<20, 1, 1<<20, 0, 0)
	s.fork(1, 7, "glasshouse-init").exec(7, "/usr/bin/python3", "python3", "agent.py", "--goal", "fix the build")
	s.call(7, "execve", 0, 400*time.Microsecond, path("/usr/bin/python3"))
	for i := range 40 {
		s.call(7, "openat", -2, time.Duration(900+20*i), path("/usr/lib/python3/site-packages/json.so"))
		s.call(7, "openat", 3, time.Duration(1500+90*i), path("/usr/lib/python3/json.py"))
		s.file(7, event.OpOpen, "/usr/lib/python3/json.py", 0)
		s.file(7, event.OpRead, "/usr/lib/python3/json.py", 4096)
		s.call(7, "read", 4096, time.Duration(600*(i%7+1)))
		s.call(7, "futex", 0, time.Duration(i)*time.Millisecond)
		s.wait(40 * time.Millisecond)
	}
	s.add(event.Event{Type: event.Proc, Op: event.OpFork, Flags: event.Thread, PID: 7, TID: 8, PPID: 1, Comm: "python3"})
	s.usage(900*time.Millisecond, 48<<20, 2, 1<<20, 0, 0)

	// A package from the network.
	s.fork(7, 42, "python3").exec(42, "/usr/bin/curl", "curl", "-sSfO", "https://files.example.org/tool-1.2.tar.gz")
	s.packet(42, event.Egress, "udp", "10.0.0.2:40001", "10.0.0.1:53", "", "", 68)
	s.packet(42, event.Ingress, "udp", "10.0.0.1:53", "10.0.0.2:40001", "", "", 140)
	const here, there, host = "10.0.0.2:51000", "93.184.216.34:443", "files.example.org"
	s.packet(42, event.Egress, "tcp", here, there, host, "SYN", 60).packet(42, event.Ingress, "tcp", there, here, host, "SYN,ACK", 60)
	s.packet(42, event.Egress, "tcp", here, there, host, "ACK", 52).packet(42, event.Egress, "tcp", here, there, host, "PSH,ACK", 569)
	for range 30 {
		s.packet(42, event.Ingress, "tcp", there, here, host, "ACK", 1500).wait(12 * time.Millisecond)
		s.call(42, "write", 1448, 9*time.Microsecond)
		s.file(42, event.OpWrite, "/work/tool-1.2.tar.gz", 1448)
	}
	s.packet(42, event.Ingress, "tcp", there, here, host, "FIN,ACK", 52).packet(42, event.Egress, "tcp", here, there, host, "FIN,ACK", 52)
	s.usage(1300*time.Millisecond, 61<<20, 3, 2<<20, 46000, 900)
	s.exit(42, 0, "")

	// Operations that are denied.
	s.fork(7, 43, "python3").exec(43, "/usr/bin/curl", "curl", "http://169.254.169.254/latest/meta-data")
	s.call(43, "connect", -111, 80*time.Microsecond, addr("169.254.169.254:80"))
	s.packet(43, event.Egress, "tcp", "10.0.0.2:51002", "169.254.169.254:80", "", "SYN", 60)
	s.packet(43, event.Ingress, "tcp", "169.254.169.254:80", "10.0.0.2:51002", "", "RST,ACK", 40)
	s.wait(21*time.Millisecond).exit(43, 7, "")
	s.call(7, "bpf", -1, 0, flagged(event.Denied)).call(7, "mount", -1, 3*time.Microsecond, path("/mnt"))
	s.call(7, "setuid", -1, 900, args(0)).call(7, "ptrace", 0, 4*time.Microsecond, args(16, 42))
	s.file(7, event.OpCreate, "/etc/cron.d/later", 0).file(7, event.OpWrite, "/etc/cron.d/later", 64)

	// It builds a helper, which crashes once and hangs once.
	s.fork(7, 44, "python3").exec(44, "/usr/bin/cc", "cc", "-O2", "-o", "helper", "helper.c").wait(700 * time.Millisecond)
	s.file(44, event.OpCreate, "/work/helper", 0).file(44, event.OpWrite, "/work/helper", 16384)
	s.call(44, "chmod", 0, 5*time.Microsecond, path("/work/helper"), args(0, 0o755))
	s.exit(44, 0, "")
	s.usage(2100*time.Millisecond, 90<<20, 3, 3<<20, 46100, 1000)
	for pid := int32(45); pid < 48; pid++ {
		s.fork(7, pid, "python3").exec(pid, "/work/helper", "./helper", "--all", "it's").wait(150 * time.Millisecond)
		switch pid {
		case 45:
			s.exit(pid, 0, "SIGSEGV")
		case 46:
			s.exit(pid, 0, "")
		case 47:
			s.call(7, "kill", 0, 2*time.Microsecond, args(47, 9)).exit(pid, 0, "SIGKILL")
		}
	}
	s.add(event.Event{Type: event.Gap, Source: event.Syscall, Lost: 12, Reason: "ring full"})
	s.usage(2400*time.Millisecond, 52<<20, 2, 3<<20, 46100, 1000)
	s.call(7, "exit_group", 0, 0, flagged(event.Unfinished))
	s.exit(7, 1, "")
	return s
}

// source returns the session's events.
func (s *session) source() report.Events { return &slice{s.events} }

type slice struct{ left []event.Event }

func (s *slice) Next(e *event.Event) ([]byte, error) {
	if len(s.left) == 0 {
		return nil, io.EOF
	}
	*e, s.left = s.left[0], s.left[1:]
	return nil, nil
}
