package event

// A key is the word before the colon of a term. It selects a field of an event. One of number,
// text and match reads the field. number and text report whether the event has the field, by
// ok or by a non-empty text.
type key struct {
	name   string // "" is the key of a bare word
	kind   kind
	types  typeSet  // types of events that have it
	values []string // the possible values, if they are limited
	ofGaps bool     // gaps have it as well, so the term also applies to them

	number func(e *Event) (v int64, ok bool)
	text   func(e *Event) string
	match  func(e *Event, a *alt) bool
}

// A kind defines how the values of a key are written and compared.
type kind uint8

const (
	number    kind = iota + 1 // 3, <3, >=3, 3..5
	result                    // a number or an error name
	duration                  // a number with a unit
	typeNamed                 // a type name
	flagNamed                 // a flag name
	word                      // the whole text, or a pattern with *
	signal                    // a signal name or number
	hostName                  // like word, case-insensitive
	pathName                  // a path and all paths below it, or a pattern
	part                      // a substring
	address                   // an address or network, with or without a port
)

const hasWho typeSet = 1<<Syscall | 1<<File | 1<<Net | 1<<Proc

// keys lists all keys, the cheapest to compare first. Terms are evaluated in this order.
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
			return min(e.Ret, 0), true // file events report only failures
		}
		return e.Ret, e.Flags&Unfinished == 0
	}},
	{name: "dur", kind: duration, types: 1 << Syscall, number: func(e *Event) (int64, bool) { return e.Dur, e.Flags&Partial == 0 }},
	{name: "bytes", kind: number, types: 1<<File | 1<<Net, number: func(e *Event) (int64, bool) { return e.Bytes, e.Type == Net || hasBytes(e) }},

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

// knowsWho reports whether an event has a known process. The process of a packet is not always
// known.
func knowsWho(e *Event) bool { return e.Type != Net || e.PID != 0 }
