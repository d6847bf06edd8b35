//go:build ignore

// Gen writes the fields of events, their encoder and their decoder to fields.go, and the API's
// form of an event to api/wire/eventfields.go. A new field needs a row in fields, a place in
// groups, and a row in docs/reference/events.md.
package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/format"
	"log"
	"os"
	"slices"
	"strings"
)

// A field is a field of Event. In an API event it has the same name in Go and a type of JSON.
type field struct {
	name, json, typ string
	options         string // space separated, see has
	description     string
}

// has reports whether f has an option: "required" in each event; "zero" if zero is a value in the
// API; "few" if it has few distinct values, which are interned; "enum=…" in the API.
func (f field) has(option string) bool { return slices.Contains(strings.Fields(f.options), option) }

func (f field) enum() string {
	for o := range strings.FieldsSeq(f.options) {
		if values, ok := strings.CutPrefix(o, "enum="); ok {
			return values
		}
	}
	return ""
}

// sections are the fields in the order of the structs. A section has a comment if its name is not
// the type of the events that have it.
var sections = []struct {
	comment string
	fields  []field
}{
	{"", []field{
		{"Type", "type", "Type", "required enum=syscall,file,net,proc,gap,usage,lineage", "Subject of the event. It determines which of the other fields are present."},
		{"Flags", "", "Flags", "", ""},
	}},
	{"", []field{
		{"Seq", "seq", "uint64", "required", "Sequence number in the jail, without gaps, from 1. A jail made from a snapshot continues the numbering of its parent."},
		{"TS", "ts", "int64", "required", "Time, in milliseconds since 1970."},
		{"NS", "ns", "int64", "", "Monotonic clock of the host at completion, in nanoseconds."},
		{"Jail", "jail", "id.Jail", "required few", ""},
	}},
	{"The acting thread.", []field{
		{"PID", "pid", "int32", "", "PID inside the jail."},
		{"TID", "tid", "int32", "", "Thread ID inside the jail."},
		{"HostPID", "host_pid", "int32", "", "Thread ID on the host."},
		{"Comm", "comm", "string", "few", "Name of the thread; by default the name of the program."},
	}},
	{"Syscall. Path and To are the path arguments.", []field{
		{"NR", "nr", "int32", "", "Number of the system call."},
		{"Name", "name", "string", "few", "Name of the system call."},
		{"ABI", "abi", "string", "few", "ABI of the system call if it is not the native one: i386, x32 or arm."},
		{"Args", "args", "[6]uint64", "", "Arguments of the system call."},
		{"Ret", "ret", "int64", "zero", "Return value of the system call, or the error of a file operation. A negative value is -errno."},
		{"Dur", "dur_ns", "int64", "", "Duration of the system call in nanoseconds."},
		{"Addr", "addr", "string", "", "Socket address that the system call received as an argument."},
	}},
	{"File, and the paths of Syscall. FD is -1 without a descriptor.", []field{
		{"Op", "op", "string", "few", "The file operation, process event or snapshot operation."},
		{"Path", "path", "string", "", "Path inside the jail."},
		{"To", "to", "string", "", "New path of a renamed or linked file."},
		{"Real", "real", "string", "", "The path that the kernel opened, if it differs from path."},
		{"Bytes", "bytes", "int64", "zero", "Number of bytes read, written or transferred."},
		{"Calls", "calls", "int64", "", "Number of consecutive reads or writes that this event aggregates."},
		{"FD", "fd", "int32", "zero", "File descriptor."},
	}},
	{`Net. Addresses have the form "10.0.0.2:54321" and "[::1]:80", without a port if the protocol has none.`, []field{
		{"Dir", "dir", "string", "few enum=egress,ingress,loopback", "Direction, from the jail's perspective."},
		{"Proto", "proto", "string", "few", "Protocol: tcp, udp, icmp, icmp6, arp, or by number as in ip-41 and eth-88cc."},
		{"Src", "src", "string", "few", "Source address."},
		{"Dst", "dst", "string", "few", "Destination address."},
		{"Host", "host", "string", "few", "The DNS name that the jail resolved to the remote address."},
		{"Iface", "iface", "string", "few", "Network interface in the jail."},
		{"TCP", "tcp", "string", "few", "TCP flags of the packet, or of all packets of a flow, as in SYN,ACK."},
		{"Packets", "packets", "int64", "", "Number of packets of a flow, or of segments of a packet if more than one."},
		{"Begin", "begin", "int64", "", "Value of ns at the first packet of a flow, or at the start of a process."},
	}},
	{"Proc.", []field{
		{"PPID", "ppid", "int32", "", "PID of the parent inside the jail."},
		{"UID", "uid", "uint32", "zero", "User ID inside the jail."},
		{"GID", "gid", "uint32", "zero", "Group ID inside the jail."},
		{"Exe", "exe", "string", "", "Path of the program inside the jail."},
		{"Argv", "argv", "[]string", "", "Arguments of the program."},
		{"Cwd", "cwd", "string", "", "Working directory inside the jail."},
		{"Code", "exit_code", "int32", "zero", "Exit status of the process."},
		{"Signal", "signal", "string", "few", "The signal that ended the process, such as SIGKILL."},
		{"UserNS", "user_ns", "int64", "", "User CPU time of the process in nanoseconds."},
		{"SystemNS", "system_ns", "int64", "", "System CPU time of the process in nanoseconds."},
		{"RSS", "rss", "int64", "", "Peak resident set size in bytes."},
	}},
	{"Gap. The lost events are between the preceding and the following event.", []field{
		{"Source", "source", "Type", "", "For a gap: type of the lost events."},
		{"Lost", "lost", "int64", "", "For a gap: number of lost events; -1 if unknown."},
		{"Reason", "reason", "string", "few", "For a gap: why events were lost."},
		{"From", "from", "uint64", "", "For a gap: first sequence number of the range with the lost events, if they had numbers."},
		{"Through", "through", "uint64", "", "For a gap: last sequence number of that range."},
	}},
	{"Usage, of the whole jail.", []field{
		{"CPU", "cpu_ns", "int64", "", "CPU time since the start of the jail in nanoseconds."},
		{"Memory", "memory_bytes", "int64", "", "Memory in use."},
		{"PIDs", "pids", "int64", "", "Number of processes and threads, without those of init."},
		{"Disk", "disk_bytes", "int64", "", "Disk space in use."},
		{"Rx", "rx_bytes", "int64", "", "Bytes received since the start of the jail."},
		{"Tx", "tx_bytes", "int64", "", "Bytes sent since the start of the jail."},
	}},
	{"Lineage.", []field{
		{"Snapshot", "snapshot", "id.Snapshot", "few", "The snapshot that was taken or restored."},
		{"Parent", "parent", "id.Jail", "few", "The source jail of the snapshot."},
		{"ParentSeq", "parent_seq", "uint64", "zero", "Sequence number of the last event in the parent's log that the snapshot includes."},
	}},
}

// flags are the bits of Flags, the lowest first. Each is a field of an API event.
var flags = []field{
	{"Denied", "denied", "bool", "", "seccomp denied the system call before it was executed."},
	{"Unfinished", "unfinished", "bool", "", "The caller died during the system call, or the call never returns. There is no return value."},
	{"Partial", "partial", "bool", "", "The caller was in the system call when observation began. There is no duration."},
	{"Child", "child", "bool", "", "The return of fork or clone in the new task."},
	{"Cut", "cut", "bool", "", "A string or list is truncated."},
	{"Raced", "raced", "bool", "", "The path in memory differed from the path that the kernel used (a TOCTOU race)."},
	{"Injected", "injected", "bool", "", "Glasshouse made the call in a process of the jail."},
	{"Unresolved", "unresolved", "bool", "", "The path of the file descriptor is unknown."},
	{"Existing", "existing", "bool", "", "The process existed when observation began."},
	{"Thread", "thread", "bool", "", "The event concerns a thread that is not the first of its process."},
	{"ReadOnly", "read_only", "bool", "", "The jail's disk is read-only after an error. In usage events."},
	{"Guest", "guest", "bool", "", "Reported by the kernel of the jail's virtual machine, and only as trustworthy as that kernel."},
}

// groups are the fields that are encoded together, in their order. A field with ? is omitted if
// it is zero, and one with a condition if that is false.
var groups = []struct{ name, fields string }{
	{"Seq", "seq"},
	{"TS", "ts"},
	{"NS", "ns?"},
	{"Jail", "jail"},
	{"Who", "pid tid host_pid comm"},
	{"Call", "nr name abi?"},
	{"Args", "args"},
	{"Result", "ret(e.Flags&Unfinished==0) dur_ns(e.Flags&Partial==0) path? to? real? addr?"},
	{"File", "op path to? bytes(hasBytes(e)) calls? fd(e.FD>=0) ret(e.Ret<0)"},
	{"Net", "dir proto src dst bytes host? iface? tcp? packets? begin?"},
	{"Op", "op"},
	{"Proc", "ppid uid gid exe? argv(e.Argv!=nil) cwd? begin?"},
	{"Exit", "signal? exit_code(e.Signal==\"\") user_ns system_ns rss?"},
	{"Gap", "source lost reason from? through?"},
	{"Usage", "cpu_ns memory_bytes pids disk_bytes rx_bytes tx_bytes"},
	{"Lineage", "op snapshot parent parent_seq"},
}

func main() {
	write("fields.go", record())
	write("../../api/wire/eventfields.go", wireRecord())
}

func write(name, text string) {
	source, err := format.Source([]byte(text))
	if err != nil {
		log.Fatalf("%s: %v\n%s", name, err, text)
	}
	if err := os.WriteFile(name, source, 0o644); err != nil {
		log.Fatal(err)
	}
}

const header = "// Code generated by gen.go of package event; DO NOT EDIT.\n\n"

func record() string {
	var b bytes.Buffer
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("%spackage event\n\nimport \"glasshouse/id\"\n", header)

	p("// Flags mark unusual events. Each set flag is a key in JSON.\ntype Flags uint16\n\nconst (")
	for i, f := range flags {
		p("%s%s // %q: %s", f.name, map[bool]string{true: " Flags = 1 << iota"}[i == 0], f.json, f.description)
	}
	p(")\n\nvar flagNames = [...]string{")
	for _, f := range flags {
		p("%q,", f.json)
	}
	p("}\n")

	p(`// An Event is one record. It is flat, so that one value can be reused for many records. Type
	// determines which fields are valid.
	//
	// Strings contain the kernel's bytes, so a path or an argument need not be valid UTF-8. In
	// JSON, invalid bytes are written as the escapes \udc80 to \udcff, like Python's
	// surrogateescape, and are read back unchanged.
	type Event struct {`)
	for i, s := range sections {
		if i > 0 {
			p("")
		}
		if s.comment != "" {
			p("// %s", s.comment)
		}
		for _, f := range s.fields {
			p("%s %s%s", f.name, f.typ, strings.TrimRight(" // "+f.description, "/ "))
		}
	}
	p("}\n")

	for _, g := range groups {
		p("func (e *Event) append%s(b []byte) []byte {", g.name)
		for part := range strings.FieldsSeq(g.fields) {
			name, condition, _ := strings.Cut(part, "(")
			condition = strings.TrimSuffix(condition, ")")
			name, optional := strings.CutSuffix(name, "?")
			f := named(name)
			if optional {
				condition = "e." + f.name + map[bool]string{true: ` != ""`, false: " != 0"}[f.typ == "string"]
			}
			if condition != "" {
				p("if %s {", condition)
			}
			p("b = append(b, `,%q:`...)", f.json)
			p("b = %s", f.encoder())
			if condition != "" {
				p("}")
			}
		}
		p("return b\n}\n")
	}

	p("// field parses the value of one key into e.\nfunc (p *parser) field(key []byte, e *Event) {\nswitch string(key) {")
	for _, s := range sections {
		for _, f := range s.fields {
			if f.json != "" {
				p("case %q:\n%s", f.json, f.decoder())
			}
		}
	}
	p("default:\np.flag(key, e)\n}\n}")
	return b.String()
}

func named(json string) field {
	for _, s := range sections {
		for _, f := range s.fields {
			if f.json == json {
				return f
			}
		}
	}
	log.Fatalf("no field is named %s", json)
	return field{}
}

// encoder returns an expression that appends the value of f in JSON to b.
func (f field) encoder() string {
	e := "e." + f.name
	switch f.typ {
	case "int32":
		return "appendInt(b, int64(" + e + "))"
	case "int64":
		return "appendInt(b, " + e + ")"
	case "uint32":
		return "appendUint(b, uint64(" + e + "))"
	case "uint64":
		return "appendUint(b, " + e + ")"
	case "string":
		return "appendString(b, " + e + ")"
	case "Type":
		return "appendString(b, " + e + ".String())"
	case "[]string":
		return "appendStrings(b, " + e + ")"
	case "[6]uint64":
		return "appendUints(b, " + e + "[:])"
	}
	return "appendString(b, string(" + e + "))"
}

// decoder returns a statement that parses a value into the field f of e.
func (f field) decoder() string {
	e := "e." + f.name
	method := f.typ
	switch {
	case f.name == "Type":
		method = "eventType"
	case f.typ == "Type":
		method = "source"
	case f.typ == "[6]uint64":
		return "p.args(&" + e + ")"
	case f.typ == "[]string":
		method = "strings"
	case strings.HasPrefix(f.typ, "id."):
		return e + " = " + f.typ + "(p.name())"
	case f.has("few"):
		method = "name"
	}
	return e + " = p." + strings.TrimSuffix(method, "64") + "()"
}

func wireRecord() string {
	var b bytes.Buffer
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("%spackage wire\n\nimport \"glasshouse/id\"\n", header)
	p(`// Event is one event of a jail. Its type determines which fields are present;
	// docs/reference/events.md describes them. Strings are bytes from the jail: each byte that is not
	// part of valid UTF-8 is escaped as a code point from \udc80 to \udcff.
	type Event struct {`)
	sections = append(sections, struct {
		comment string
		fields  []field
	}{"", flags})
	for i, s := range sections {
		if i > 0 {
			p("")
		}
		for _, f := range s.fields {
			if f.json != "" {
				p("%s %s `%s`", f.name, f.wireType(), f.tags())
			}
		}
	}
	p("}")
	return b.String()
}

func (f field) wireType() string {
	t := cmp.Or(map[string]string{"Type": "string", "[6]uint64": "[]uint64"}[f.typ], f.typ)
	if f.has("zero") {
		t = "*" + t
	}
	return t
}

func (f field) tags() string {
	tags := fmt.Sprintf(`json:"%s"`, f.json)
	if f.has("required") {
		tags += ` required:"true"`
	} else {
		tags = fmt.Sprintf(`json:"%s,omitempty"`, f.json)
	}
	if e := f.enum(); e != "" {
		tags += fmt.Sprintf(" enum:%q", e)
	}
	if f.description != "" {
		tags += fmt.Sprintf(" description:%q", f.description)
	}
	return tags
}
