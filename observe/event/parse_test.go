package event_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glasshouse/id"
	"glasshouse/observe/event"
)

// A die creates random events of every type with the fields that the type has.
type die struct{ *rand.Rand }

func (d die) int() int64 {
	switch d.IntN(8) {
	case 0:
		return 0
	case 1:
		return math.MinInt64
	case 2:
		return math.MaxInt64
	}
	return int64(d.Uint64()) >> d.IntN(64)
}

func (d die) int32() int32   { return int32(d.int()) }
func (d die) uint() uint64   { return uint64(d.int()) }
func (d die) uint32() uint32 { return uint32(d.int()) }

// word returns a string that is not empty.
func (d die) word() string {
	parts := []string{
		"a", "openat", "/usr/lib/python3.11", "name with spaces", `"`, `\`, `\u0041`, "\n", "\t\r", "\x00", "\x1f", "\x7f", "é", "日本", "💀",
		"\xff", "\x80", "\xc3", "\xa9", "\xed\xa0\x80", "\xed\xb2\x80", "\xf0\x9f", "\u2028", "\u2029", "\ufffd", "<&>", "*", strings.Repeat("x", 70),
	}
	var s strings.Builder
	for range d.IntN(4) + 1 {
		s.WriteString(parts[d.IntN(len(parts))])
	}
	return s.String()
}

func (d die) maybe() string {
	if d.IntN(2) == 0 {
		return ""
	}
	return d.word()
}

func (d die) event(t event.Type) event.Event {
	e := event.Event{Type: t, Seq: d.uint(), TS: d.int(), NS: d.int(), Jail: id.Jail(d.maybe()), FD: -1}
	if d.IntN(2) == 0 {
		e.Flags = event.Flags(d.IntN(int(event.Thread) * 2))
	}
	who := func() {
		e.PID, e.TID, e.HostPID, e.Comm = d.int32(), d.int32(), d.int32(), d.maybe()
	}
	switch t {
	case event.Syscall:
		who()
		e.NR, e.Name, e.ABI, e.Addr = d.int32(), d.maybe(), d.maybe(), d.maybe()
		e.Path, e.To, e.Real = d.maybe(), d.maybe(), d.maybe()
		for i := range e.Args {
			e.Args[i] = d.uint()
		}
		if e.Flags&event.Unfinished == 0 {
			e.Ret = d.int()
		}
		if e.Flags&event.Partial == 0 {
			e.Dur = d.int()
		}
	case event.File:
		who()
		e.Op, e.Path, e.To, e.Bytes = d.maybe(), d.maybe(), d.maybe(), d.int()
		e.FD, e.Ret = max(d.int32(), -1), min(d.int(), 0)
	case event.Net:
		if who(); e.PID == 0 {
			e.TID, e.HostPID, e.Comm = 0, 0, ""
		}
		e.Dir, e.Proto, e.Src, e.Dst, e.Bytes = d.maybe(), d.maybe(), d.maybe(), d.maybe(), d.int()
		e.Host, e.Iface, e.TCP, e.Packets, e.Begin = d.maybe(), d.maybe(), d.maybe(), d.int(), d.int()
	case event.Proc:
		who()
		e.Op = []string{event.OpFork, event.OpExec, event.OpExit}[d.IntN(3)]
		e.PPID, e.UID, e.GID, e.Exe, e.Cwd, e.Begin = d.int32(), d.uint32(), d.uint32(), d.maybe(), d.maybe(), d.int()
		switch n := d.IntN(5); n {
		case 0:
		default:
			e.Argv = make([]string, n-1)
			for i := range e.Argv {
				e.Argv[i] = d.maybe()
			}
		}
		if e.Op == event.OpExit {
			if e.Signal = d.maybe(); e.Signal == "" {
				e.Code = d.int32()
			}
			e.UserNS, e.SystemNS, e.RSS = d.int(), d.int(), d.int()
		}
	case event.Gap:
		e.Source, e.Lost, e.Reason = event.Type(d.IntN(len(event.Types)+1)), d.int(), d.maybe()
		e.From, e.Through = d.uint(), d.uint()
	case event.Lineage:
		e.Op = []string{event.OpSnapshot, event.OpRestore, event.OpBranch, event.OpRewind}[d.IntN(4)]
		e.Snapshot, e.Parent, e.ParentSeq = id.Snapshot(d.maybe()), id.Jail(d.maybe()), d.uint()
	case event.Usage:
		e.CPU, e.Memory, e.PIDs, e.Disk, e.Rx, e.Tx = d.int(), d.int(), d.int(), d.int(), d.int(), d.int()
	}
	return e
}

// wantWhole fails the test unless e is equal after encoding and parsing.
func wantWhole(t *testing.T, e *event.Event) {
	t.Helper()
	line := e.AppendJSON(nil)
	if !json.Valid(line) {
		t.Fatalf("not JSON: %s", line)
	}
	for _, c := range line {
		if c < ' ' || c == 0x7f {
			t.Fatalf("byte %#x in %q", c, line)
		}
	}
	got := event.Event{Type: event.Usage, Comm: "of an earlier event", Argv: []string{"x"}, Ret: 9, Host: "x"}
	if err := event.Parse(line, &got); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	if diff := cmp.Diff(*e, got); diff != "" {
		t.Fatalf("%s\nis parsed as (-want +got)\n%s", line, diff)
	}
}

func TestRoundTrip(t *testing.T) {
	d := die{rand.New(rand.NewPCG(1, 2))}
	for range 5000 {
		for _, ty := range event.Types {
			e := d.event(ty)
			wantWhole(t, &e)
		}
	}
	for _, r := range day {
		wantWhole(t, r.e)
	}
}

func TestInvalidUTF8RoundTrip(t *testing.T) {
	for _, tt := range []struct{ path, json string }{
		{"/tmp/\xff\xfe", `"/tmp/\udcff\udcfe"`},
		{"caf\xe9", `"caf\udce9"`},
		{"café", `"café"`},
		{"\xed\xb2\x80", `"\udced\udcb2\udc80"`}, // U+DC80 encoded as UTF-8, which is invalid
		{"💀", `"💀"`},
		{"\u2028\u2029", `"\u2028\u2029"`},
		{"\u0080\u009b2J\u009f\u00a0", `"\u0080\u009b2J\u009f` + "\u00a0\""},
		{"\x00\x01\x1b[2J\x7f", `"\u0000\u0001\u001b[2J\u007f"`},
		{"\"\\\n\t\r", `"\"\\\n\t\r"`},
	} {
		e := event.Event{Type: event.File, Op: event.OpClose, Path: tt.path, FD: -1}
		if line := string(e.AppendJSON(nil)); !strings.Contains(line, `"path":`+tt.json) {
			t.Errorf("%q is encoded as %s, want %s", tt.path, line, tt.json)
		}
		wantWhole(t, &e)
	}
}

func TestParseForeignJSON(t *testing.T) {
	const record = `{"type":"file","path":%s}`
	for in, want := range map[string]string{
		`"\/\b\f\n\r\t\"\\"`:   "/\b\f\n\r\t\"\\",
		`"\u00e9\u00E9"`:       "éé",
		`"\ud83d\udc80"`:       "💀", // a pair, although its second half alone would encode a byte
		`"\ud83d\uDC80\udc80"`: "💀\x80",
		`"\ud83d"`:             "\ufffd",
		`"\ud83dx"`:            "\ufffdx",
		`"\ud83d\ud83d\udc80"`: "\ufffd💀",
		`"\udc41\udd00"`:       "\ufffd\ufffd",
		`"\udcc3\udca9"`:       "é", // two bytes that form a valid character
		"\"\xff\"":             "\xff",
		`null`:                 "",
		`"a", "path" : "b" `:   "b",
		`"b","\u0070id":3`:     "b",
		`"b","new":[{"a":[]}]`: "b",
		`"b","new":-1.5e+3`:    "b",
		`"b","new":{"a":null , "b":[true,false,"\u0000",0,{}]}`: "b",
	} {
		var e event.Event
		if err := event.Parse(fmt.Appendf(nil, record, in), &e); err != nil || e.Path != want {
			t.Errorf("%s is parsed as %q, %v; want %q", in, e.Path, err, want)
		}
	}

	var e event.Event
	if err := event.Parse([]byte(" {\n\"pid\" : 7 , \"thread\": true, \"denied\":false,\"args\":[ 1 , 2 ],\t\"type\":\"syscall\" } \n"), &e); err != nil {
		t.Fatal(err)
	}
	want := event.Event{Type: event.Syscall, PID: 7, Flags: event.Thread, Args: [6]uint64{1, 2}, FD: -1}
	if diff := cmp.Diff(want, e); diff != "" {
		t.Errorf("(-want, +got)\n%s", diff)
	}
}

func TestParseErrors(t *testing.T) {
	deep := strings.Repeat("[", 100) + strings.Repeat("]", 100)
	for line, want := range map[string]string{
		``:                             "no object at byte 0",
		`null`:                         "no object at byte 0",
		`[]`:                           "no object at byte 0",
		`{}`:                           "no type at byte 2",
		`{"type":"file"`:               "no comma at byte 14",
		`{"type":"file",}`:             "no string at byte 15",
		`{"type":"file"}{`:             "more after the record at byte 15",
		`{"type":"file" "pid":1}`:      "no comma at byte 15",
		`{"type":"packet"}`:            "an unknown type at byte 16",
		`{"type":3}`:                   "no string at byte 8",
		`{"type":"gap","source":"x"}`:  "an unknown source at byte 26",
		`{"seq":-1}`:                   "no number at byte 7",
		`{"seq":"1"}`:                  "no number at byte 7",
		`{"seq":01}`:                   "a number that begins with 0 at byte 9",
		`{"seq":1.0}`:                  "no whole number at byte 8",
		`{"seq":1e3}`:                  "no whole number at byte 8",
		`{"seq":18446744073709551616}`: "a number too large",
		`{"ts":9223372036854775808}`:   "a number too large",
		`{"ts":-9223372036854775809}`:  "a number too small",
		`{"pid":2147483648}`:           "a number beyond 32 bits",
		`{"uid":4294967296}`:           "a number beyond 32 bits",
		`{"pid":}`:                     "no number at byte 7",
		`{"args":[1,2,3,4,5,6,7]}`:     "more than six arguments",
		`{"args":[1,]}`:                "no number at byte 11",
		`{"argv":["a",]}`:              "no string at byte 13",
		`{"argv":"a"}`:                 "no list at byte 8",
		`{"denied":1}`:                 "no value of the right kind at byte 10",
		`{"path":nul}`:                 "no value of the right kind at byte 8",
		`{"path":"a`:                   "a string without end",
		`{"path":"a\`:                  "a string without end",
		`{"path":"a\"}`:                "a string without end",
		`{"path":"\x"}`:                "an unknown escape at byte 10",
		`{"path":"\u12g4"}`:            "an unknown escape",
		"{\"path\":\"a\nb\"}":          "a control character in a string at byte 10",
		"{\"path\":\"\\n\nb\"}":        "a control character in a string at byte 11",
		`{"new":tru}`:                  "no value of the right kind",
		`{"new":-}`:                    "no value at byte 8",
		`{"new":1.}`:                   "no value at byte 9",
		`{"new":01}`:                   "no comma at byte 8",
		`{"new":[1 2]}`:                "no comma",
		`{"new":{"a"}}`:                "no colon",
		`{"new":` + deep + `}`:         "no value",
	} {
		var e event.Event
		if err := event.Parse([]byte(line), &e); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", line, err, want)
		}
	}
}

func TestParseRejectsTruncatedLines(t *testing.T) {
	var e event.Event
	for _, r := range day {
		line := r.e.AppendJSON(nil)
		for n := range line {
			if err := event.Parse(line[:n], &e); err == nil {
				t.Fatalf("%s is accepted", line[:n])
			}
		}
	}
}

func TestParseRetainsNoReference(t *testing.T) {
	line := began.AppendJSON(nil)
	var e event.Event
	if err := event.Parse(line, &e); err != nil {
		t.Fatal(err)
	}
	before := string(e.AppendJSON(nil))
	first := e
	clear(line)
	if err := event.Parse(exited.AppendJSON(nil), &e); err != nil {
		t.Fatal(err)
	}
	if got := string(first.AppendJSON(nil)); got != before {
		t.Errorf("after the line was overwritten, the event is %s, want %s", got, before)
	}
}

// FuzzParse checks that an accepted event has a canonical encoding that encoding/json decodes to
// the same values.
func FuzzParse(f *testing.F) {
	for _, r := range day {
		f.Add(r.e.AppendJSON(nil))
	}
	f.Add([]byte(` {"\u0074ype" : "proc", "op":"exit", "argv":["\udcff\ud83d\udc80"], "new":[{"a":1.5e-7}], "denied":true}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		var e, again event.Event
		if event.Parse(line, &e) != nil {
			return
		}
		if !json.Valid(line) {
			t.Fatalf("%q is not JSON but was accepted", line)
		}
		first := e.AppendJSON(nil)
		if !json.Valid(first) {
			t.Fatalf("%q was encoded as %s", line, first)
		}
		if err := event.Parse(first, &again); err != nil {
			t.Fatalf("%v: %s", err, first)
		}
		if second := again.AppendJSON(nil); string(first) != string(second) {
			t.Fatalf("%s\nwas parsed and encoded as\n%s", first, second)
		}
	})
}

// FuzzParseAcceptsForeignOutput checks that valid JSON with the expected types is accepted.
func FuzzParseAcceptsForeignOutput(f *testing.F) {
	f.Add("path", "/a", int64(3), true)
	f.Add("seq\"", "\xff\u2028\\", int64(-3), false)
	f.Fuzz(func(t *testing.T, key, s string, n int64, b bool) {
		if strings.EqualFold(key, "type") {
			return
		}
		line, err := json.MarshalIndent(map[string]any{"type": "file", "path": s, "ts": n, "thread": b,
			"new " + key: map[string]any{key: s, "a": []any{n, b, s, nil, 1.5}}}, "", "\t")
		if err != nil {
			t.Skip(err)
		}
		var e event.Event
		if err := event.Parse(line, &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		var want struct{ Path string }
		if err := json.Unmarshal(line, &want); err != nil {
			t.Fatal(err)
		}
		if e.Path != want.Path || e.TS != n || (e.Flags == event.Thread) != b {
			t.Fatalf("%s was parsed as %+v", line, e)
		}
	})
}

func FuzzRoundTrip(f *testing.F) {
	f.Add(uint64(1), "a", "b")
	f.Fuzz(func(t *testing.T, seed uint64, a, b string) {
		d := die{rand.New(rand.NewPCG(seed, 0))}
		for _, ty := range event.Types {
			e := d.event(ty)
			for _, s := range []*string{&e.Comm, &e.Name, &e.Path, &e.Host, &e.Reason, &e.Exe} {
				if *s != "" {
					*s = a + b
				}
			}
			if len(e.Argv) > 0 {
				e.Argv[0] = b
			}
			if e.Type == event.Syscall || e.Type == event.File || e.Type == event.Proc {
				e.Comm = a
			}
			wantWhole(t, &e)
		}
	})
}
