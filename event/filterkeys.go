package event

// A key is the word before a term's colon: where in a record the term looks.
// One of number, text and match gets at it there; the first two report whether
// the record has it at all, by ok or a text that is not empty.
type key struct {
	name   string // "" is that of a bare word
	kind   kind
	types  typeSet  // of records that have it
	values []string // what it can be, if that is a closed list
	ofGaps bool     // gaps have it as well, so that the term decides about them too

	number func(e *Event) (v int64, ok bool)
	text   func(e *Event) string
	match  func(e *Event, a *alt) bool
}

// A kind is how the values of a key are written and compared.
type kind uint8

const (
	number    kind = iota + 1 // 3, <3, >=3, 3..5
	result                    // a number, or the name of an error
	duration                  // a number with its unit
	typeNamed                 // the name of a type
	flagNamed                 // the name of a flag
	word                      // the whole text, or a pattern with *
	signal                    // the name or number of a signal
	hostName                  // like word, whatever the case
	pathName                  // a path and all below it, or a pattern
	part                      // a part of the text
	address                   // an address or network, with or without a port
)

const hasWho typeSet = 1<<Syscall | 1<<File | 1<<Net | 1<<Proc

// keys lists all, the cheapest to compare first: so the terms are tried.
var keys = []key{
	{name: "type", kind: typeNamed, types: everyType, ofGaps: true, number: func(e *Event) (int64, bool) { return int64(e.Type), true }},
	{name: "seq", kind: number, types: everyType, ofGaps: true, number: func(e *Event) (int64, bool) { return int64(e.Seq), true }},
	{name: "flag", kind: flagNamed, types: everyType, match: func(e *Event, a *alt) bool { return e.Flags>>a.lo&1 != 0 }},

	{name: "pid", kind: number, types: hasWho, number: func(e *Event) (int64, bool) { return int64(e.PID), knowsWho(e) }},
	{name: "tid", kind: number, types: hasWho, number: func(e *Event) (int64, bool) { return int64(e.TID), knowsWho(e) }},
	{name: "host_pid", kind: number, types: hasWho, number: func(e *Event) (int64, bool) { return int64(e.HostPID), knowsWho(e) }},
	{name: "ppid", kind: number, types: 1 << Proc, number: func(e *Event) (int64, bool) { return int64(e.PPID), true }},
	{name: "uid", kind: number, types: 1 << Proc, number: func(e *Event) (int64, bool) { return int64(e.UID), true }},
	{name: "exit_code", kind: number, types: 1 << Proc, number: func(e *Event) (int64, bool) { return int64(e.Code), e.Op == OpExit && e.Signal == "" }},
	{name: "nr", kind: number, types: 1 << Syscall, number: func(e *Event) (int64, bool) { return int64(e.NR), true }},
	{name: "ret", kind: result, types: 1<<Syscall | 1<<File, number: func(e *Event) (int64, bool) {
		if e.Type == File {
			return min(e.Ret, 0), true // of files only failures are told
		}
		return e.Ret, e.Flags&Unfinished == 0
	}},
	{name: "dur", kind: duration, types: 1 << Syscall, number: func(e *Event) (int64, bool) { return e.Dur, e.Flags&Partial == 0 }},
	{name: "bytes", kind: number, types: 1<<File | 1<<Net, number: func(e *Event) (int64, bool) { return e.Bytes, e.Type == Net || tellsBytes(e) }},

	{name: "name", kind: word, types: 1 << Syscall, text: func(e *Event) string { return e.Name }},
	{name: "op", kind: word, types: 1<<File | 1<<Proc | 1<<Lineage, values: operations, text: func(e *Event) string { return e.Op }},
	{name: "dir", kind: word, types: 1 << Net, values: []string{Egress, Ingress, Loopback}, text: func(e *Event) string { return e.Dir }},
	{name: "proto", kind: word, types: 1 << Net, text: func(e *Event) string { return e.Proto }},
	{name: "signal", kind: signal, types: 1 << Proc, text: func(e *Event) string {
		if e.Op != OpExit {
			return ""
		}
		return e.Signal
	}},
	{name: "snapshot", kind: word, types: 1 << Lineage, text: func(e *Event) string { return string(e.Snapshot) }},
	{name: "parent", kind: word, types: 1 << Lineage, text: func(e *Event) string { return string(e.Parent) }},
	{name: "comm", kind: word, types: hasWho, text: func(e *Event) string {
		if !knowsWho(e) {
			return ""
		}
		return e.Comm
	}},

	{name: "port", kind: number, types: 1 << Net, match: func(e *Event, a *alt) bool { return a.holdsPort(e.Src) || a.holdsPort(e.Dst) }},
	{name: "src", kind: address, types: 1 << Net, match: func(e *Event, a *alt) bool { return a.addr.contains(e.Src) }},
	{name: "dst", kind: address, types: 1 << Net, match: func(e *Event, a *alt) bool { return a.addr.contains(e.Dst) }},
	{name: "host", kind: hostName, types: 1 << Net, match: func(e *Event, a *alt) bool { return a.host(e.Host) }},
	{name: "exe", kind: pathName, types: 1 << Proc, match: func(e *Event, a *alt) bool { return a.path(e.Exe) }},
	{name: "path", kind: pathName, types: 1<<Syscall | 1<<File, match: func(e *Event, a *alt) bool {
		return a.path(e.Path) || a.path(e.To) || e.Type == Syscall && a.path(e.Real)
	}},
	{name: "argv", kind: part, types: 1 << Proc, match: func(e *Event, a *alt) bool { return a.args(e.Argv) }},
	{name: "", kind: part, types: hasWho, match: func(e *Event, a *alt) bool {
		if knowsWho(e) && a.within(e.Comm) {
			return true
		}
		switch e.Type {
		case Syscall:
			return a.within(e.Name) || a.within(e.Path) || a.within(e.To) || a.within(e.Real)
		case File:
			return a.within(e.Path) || a.within(e.To)
		case Net:
			return a.within(e.Host)
		}
		return a.within(e.Exe) || a.args(e.Argv)
	}},
}

// knowsWho reports whether a record that can say whose doing it was does: of a
// packet that is not always known.
func knowsWho(e *Event) bool { return e.Type != Net || e.PID != 0 }
