package report_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"glasshouse/observe/event"
	"glasshouse/observe/report"
)

// FuzzFold folds arbitrary events and checks that the report is consistent.
func FuzzFold(f *testing.F) {
	f.Add([]byte("a fork, an exec, an exit, and some packets in between"))
	f.Add(bytes.Repeat([]byte{4, 0, 1, 1, 9, 4, 1, 1, 0, 8, 4, 2, 1, 1, 7, 255}, 8))
	f.Add(bytes.Repeat([]byte{3, 1, 2, 3, 4, 5, 6, 7, 8}, 12))
	f.Fuzz(func(t *testing.T, b []byte) {
		events := records(b)
		fold, tree := report.NewFold(), report.NewTree()
		for i := range events {
			fold.Add(&events[i])
			if events[i].Flags&event.Injected == 0 {
				tree.Add(&events[i])
			}
		}
		wellFormed(t, tree.Processes(false))
		wellFormed(t, tree.Processes(true))
		r := fold.Report()
		if got := r.Completeness.Records; got != int64(len(events)) {
			t.Errorf("%d records, want %d", got, len(events))
		}
		if n := int64(len(tree.Processes(true))); n > r.Processes.Count {
			t.Errorf("%d processes in the tree, %d counted", n, r.Processes.Count)
		}
		for what, n := range map[string]int64{"processes": r.Processes.More, "runs": r.Commands.More, "calls": r.Syscalls.More,
			"failures": r.Failures.More, "connects": r.Network.FailsMore, "bytes out": r.Network.More.BytesOut, "bytes in": r.Network.More.BytesIn,
			"operations": r.Files.Changed.More.Operations() + r.Files.Read.More.Operations() + r.Files.Failed.More.Operations()} {
			if n < 0 {
				t.Errorf("%d %s are not listed", n, what)
			}
		}
		if len(r.Usage.Points) > 200 {
			t.Errorf("%d points", len(r.Usage.Points))
		}
		if _, err := json.Marshal(r); err != nil {
			t.Errorf("JSON: %v", err)
		}
		var out bytes.Buffer
		if err := r.HTML(&out); err != nil {
			t.Errorf("HTML: %v", err)
		}
		if err := r.Markdown(&out); err != nil {
			t.Errorf("Markdown: %v", err)
		}
	})
}

// records builds events from bytes. Values come from small sets, so that events refer to each
// other, and sometimes are extreme.
func records(b []byte) []event.Event {
	var out []event.Event
	next := func() byte {
		if len(b) == 0 {
			return 0
		}
		c := b[0]
		b = b[1:]
		return c
	}
	num := func() int64 {
		switch c := next(); c {
		case 255:
			return 1<<63 - 1
		case 254:
			return -1 << 63
		case 253:
			return -1
		default:
			return int64(c % 16)
		}
	}
	text := func(of ...string) string { return of[int(next())%len(of)] }
	for seq := uint64(1); len(b) > 0 && len(out) < 4096; seq++ {
		c := next()
		out = append(out, event.Event{
			Type: event.Type(c % 8), Flags: event.Flags(next()) << (c >> 6), Seq: seq + uint64(c>>7), TS: num() * 1000, NS: num() * int64(c),
			PID: int32(num()), TID: int32(num()), PPID: int32(num()), Begin: num(), Comm: text("a", "", "\xff"),
			Name: text("mount", "chmod", "connect", "kill", "x", "clone", ""), Args: [6]uint64{uint64(num()), uint64(num()), uint64(num())},
			Ret: -num(), Dur: num(), Addr: text("", "10.0.0.1:1"),
			Op:   text(event.OpFork, event.OpExec, event.OpExit, event.OpWrite, event.OpRead, event.OpRename, event.OpExchange, event.OpOpen, "?"),
			Path: text("/tmp/a", "/etc/b", "", "pipe:[1]", "/dev/null", "/a\x00b"), To: text("", "/etc/b", "/tmp/a"), Bytes: num(),
			Dir: text(event.Egress, event.Ingress, event.Loopback, "?"), Proto: text("tcp", "udp", ""),
			Src: text("10.0.0.1:1", "10.0.0.2:2", "", "[::1]:5"), Dst: text("10.0.0.2:2", "10.0.0.1:1", "x"), Host: text("", "h"),
			TCP: text("SYN", "SYN,ACK", "RST", "FIN,ACK", "ACK", ""), Packets: num(),
			Exe: text("/tmp/a", "/etc/b", "/memfd:x"), Argv: []string{text("a", "b", "")}, Code: int32(num()), Signal: text("", "SIGKILL", "SIGSEGV", "?"),
			Source: event.Type(next() % 8), Lost: num(), From: uint64(num()), Through: uint64(num()), CPU: num(), Memory: num(), PIDs: num(), Rx: num(), Tx: num(),
		})
	}
	return out
}
