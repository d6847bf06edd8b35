package event_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"glasshouse/fault"
	"glasshouse/observe/event"
)

// FuzzParseFilter checks that the canonical text of a filter parses to an equal filter with the
// same text, and that Types lists the types of all matching events.
func FuzzParseFilter(f *testing.F) {
	for _, q := range []string{
		"type:net,gap host:*.example.com ret:<0 pid:42", `-path:"/a b/*",/c\*d "-x:" -"y,z" \"`, "ret:EAGAIN dur:1ms..2s bytes:>=0",
		"src:[::1]:80,10.0.0.0/8:1 dst:::ffff:1.2.3.4 port:1..9", "signal:kill,rt* flag:cut -type:gap argv:a*b** seq:<=-1", "*",
	} {
		f.Add(q, uint64(1))
	}
	f.Fuzz(func(t *testing.T, q string, seed uint64) {
		filter, err := event.ParseFilter(q)
		if err != nil {
			if !errors.Is(err, fault.Invalid) || fault.FieldOf(err) != "q" {
				t.Fatalf("%q: %v", q, err)
			}
			return
		}
		text := filter.String()
		again, err := event.ParseFilter(text)
		if err != nil && len(text) <= 4096 { // quoting may exceed the maximum length
			t.Fatalf("%q has the text %q: %v", q, text, err)
		} else if err != nil {
			return
		}
		if second := again.String(); second != text {
			t.Fatalf("%q has the text %q, which has the text %q", q, text, second)
		}
		lists := map[event.Type]bool{}
		for _, ty := range filter.Types() {
			lists[ty] = true
		}
		d := die{rand.New(rand.NewPCG(seed, 0))}
		for _, ty := range event.Types {
			e := d.event(ty)
			got := filter.Match(&e)
			if got != again.Match(&e) {
				t.Fatalf("%q and %q differ for %+v", q, text, e)
			}
			beside := ty == event.Gap && (lists[e.Source] || e.Source == 0)
			if got && !lists[ty] && !beside {
				t.Fatalf("%q has the types %v but matches %+v", q, filter.Types(), e)
			}
		}
	})
}

// Equal filters have the same text.
func TestFilterString(t *testing.T) {
	for q, want := range map[string]string{
		"":                                   "",
		"  pid:42\ttype:net  pid:42 ":        "type:net pid:42",
		"pid:9,10,9":                         "pid:10,9",
		"pid:+5,>=05":                        "pid:5,>=5",
		"ret:eperm,EWOULDBLOCK,ENOTSUP,-1":   "ret:-1,EAGAIN,EOPNOTSUPP,EPERM",
		"dur:>1500us dur:1m":                 "dur:1m0s dur:>1.5ms",
		"signal:9,kill":                      "signal:SIGKILL",
		"host:A.B.":                          "host:a.b",
		"path:/work//":                       "path:/work",
		"path:///":                           "path:/",
		`path:"/work"/x`:                     "path:/work/x",
		`path:/a\ b,/c`:                      `path:"/a b",/c`,
		`path:a**b`:                          "path:a*b",
		`path:\*\\\"`:                        `path:\*\\\"`,
		`"a:b" "-c" -"-d" e`:                 `"-c" "a:b" -"-d" e`,
		"src:10.1.2.3/8,::1 dst:[::0:1]:080": "src:10.0.0.0/8,::1 dst:[::1]:80",
		"src:::ffff:10.0.0.1":                "src:10.0.0.1",
		"b a -type:gap":                      "-type:gap a b",
	} {
		f, err := event.ParseFilter(q)
		if err != nil {
			t.Errorf("%s: %v", q, err)
		} else if got := f.String(); got != want {
			t.Errorf("%s has the text %s, want %s", q, got, want)
		}
	}
}

func TestNilFilterMatchesAll(t *testing.T) {
	var f *event.Filter
	for _, r := range day {
		if !f.Match(r.e) {
			t.Errorf("a nil filter does not match %s", r.name)
		}
	}
	if got := len(f.Types()); got != len(event.Types) || f.String() != "" {
		t.Errorf("a nil filter has the types %v and the text %q", f.Types(), f.String())
	}
}

// Sources reuse events. Match must ignore fields that the event's type does not have.
func TestMatchIgnoresFieldsOfOtherTypes(t *testing.T) {
	e := event.Event{Type: event.Net, Comm: "old", Path: "/old", Exe: "/old", Name: "old", Argv: []string{"old"}, Signal: "SIGKILL", Op: event.OpExit, Ret: -1}
	for _, q := range []string{"old", "comm:old", "path:/old", "exe:/old", "name:old", "argv:old", "signal:KILL", "op:exit", "ret:<0", "pid:0"} {
		f, err := event.ParseFilter(q)
		if err != nil {
			t.Fatal(err)
		}
		if f.Match(&e) {
			t.Errorf("%s matches a packet because of fields of another type", q)
		}
	}
}
