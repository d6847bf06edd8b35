package guest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/observetest"
)

// frames returns an answer with events as a machine sends it.
func frames(h header, lines ...string) []byte {
	h.Events = len(lines)
	b, err := json.Marshal(h)
	if err != nil {
		panic(err)
	}
	return []byte(string(b) + "\n" + strings.Join(append(lines, ""), "\n"))
}

const someCall = `{"type":"syscall","seq":9,"ts":1,"ns":1000,"jail":"j-someoneelse00","pid":7,"tid":7,"host_pid":1,` +
	`"comm":"x","nr":39,"name":"getpid","args":[0,0,0,0,0,0],"ret":7,"dur_ns":5}`

// FuzzFrames sends answers to the daemon. Each event of a valid answer is recorded as one event, which
// has nothing that only the host may set.
func FuzzFrames(f *testing.F) {
	f.Add(frames(header{Last: 1}, someCall))
	f.Add(frames(header{Last: 2, State: frozen, Throttled: 7}, `{"type":"gap","seq":0,"ts":0,"ns":5,"jail":"","source":"file","lost":17,"reason":"r"}`, "nonsense"))
	f.Add(frames(header{Err: "failed", Kind: "conflict"}))
	f.Add([]byte(`{"events":3}` + "\n" + someCall + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := readAnswer(bytes.NewReader(data))
		if err != nil {
			return
		}
		log := &observetest.Log{}
		w := &watch{source: New(Config{}), sink: log}
		w.append(a)
		if n := int(log.Last()); n != a.Events {
			t.Fatalf("%d events are recorded as %d", a.Events, n)
		}
		now, wall := observe.Now(), time.Now().UnixMilli()
		for _, of := range event.Types {
			for _, e := range log.Events(of, "") {
				bad := e.HostPID != 0 || e.Jail != "" || e.NS < 1 || e.NS > now || e.Begin > e.NS || e.TS > wall+1 || e.Flags&event.Guest == 0 ||
					e.Flags&(event.Injected|event.ReadOnly) != 0 || e.PID < 0 || e.PID > maxPID || e.Lost > maxLost
				if bad || of != event.Syscall && of != event.File && of != event.Proc && of != event.Gap {
					t.Fatalf("recorded %s", e.AppendJSON(nil))
				}
				var back event.Event
				if err := event.Parse(e.AppendJSON(nil), &back); err != nil {
					t.Fatalf("the recorded event is not valid: %v", err)
				}
			}
		}
	})
}

// TestForgedEvents sends events that are not valid. Each is recorded as a missing event.
func TestForgedEvents(t *testing.T) {
	for name, line := range map[string]string{
		"no JSON":         "x",
		"network":         `{"type":"net","seq":1,"ts":1,"ns":1,"jail":"j"}`,
		"usage":           `{"type":"usage","seq":1,"ts":1,"ns":1,"jail":"j","cpu_ns":1}`,
		"lineage":         `{"type":"lineage","seq":1,"ts":1,"ns":1,"jail":"j","op":"rewind"}`,
		"process id":      strings.Replace(someCall, `"pid":7`, `"pid":2147483647`, 1),
		"negative id":     strings.Replace(someCall, `"tid":7`, `"tid":-7`, 1),
		"no name":         strings.Replace(someCall, `"getpid"`, `""`, 1),
		"long name":       strings.Replace(someCall, "getpid", strings.Repeat("x", 1000), 1),
		"duration":        strings.Replace(someCall, `"dur_ns":5`, `"dur_ns":-5`, 1),
		"operation":       `{"type":"file","seq":1,"ts":1,"ns":1,"jail":"j","pid":1,"tid":1,"op":"format","path":"/"}`,
		"process":         `{"type":"proc","seq":1,"ts":1,"ns":1,"jail":"j","pid":1,"tid":1,"op":"open"}`,
		"gap of packets":  `{"type":"gap","seq":1,"ts":1,"ns":1,"jail":"j","source":"net","lost":1}`,
		"huge gap":        fmt.Sprintf(`{"type":"gap","seq":1,"ts":1,"ns":1,"jail":"j","source":"file","lost":%d}`, math.MaxInt64),
		"negative gap":    `{"type":"gap","seq":1,"ts":1,"ns":1,"jail":"j","source":"file","lost":-2}`,
		"gap of a range":  `{"type":"gap","seq":1,"ts":1,"ns":1,"jail":"j","source":"file","lost":1,"from":1,"through":9}`,
		"several objects": someCall + someCall,
	} {
		var e event.Event
		if parseEvent([]byte(line), &e, observe.Now(), 0) {
			t.Errorf("%s: the event is accepted: %s", name, e.AppendJSON(nil))
		}
		if e.Type != event.Gap || e.Lost != 1 || e.Flags != event.Guest {
			t.Errorf("%s: recorded as %s, want a gap of one event", name, e.AppendJSON(nil))
		}
	}
	var e event.Event
	if !parseEvent([]byte(someCall), &e, 500, 3e6) || e.NS != 500 || e.TS != 3 || e.Seq != 0 || e.Jail != "" || e.HostPID != 0 {
		t.Errorf("an event of the future = %s, want the host's time, and no number, jail or process of the host", e.AppendJSON(nil))
	}
}

// TestHostileAnswers checks that answers that are not valid are errors, and are read up to a limit.
func TestHostileAnswers(t *testing.T) {
	for name, data := range map[string][]byte{
		"empty":            nil,
		"no newline":       []byte("{}"),
		"no header":        []byte("x\n"),
		"too few events":   []byte(`{"events":2}` + "\n" + someCall + "\n"),
		"too many events":  []byte(`{"events":1}` + "\n" + someCall + "\n" + someCall + "\n"),
		"negative":         []byte(`{"events":-1}` + "\n"),
		"incomplete event": []byte(`{"events":1}` + "\n" + someCall + "\nx"),
		"state":            frames(header{State: "asleep"}),
		"long header":      frames(header{Err: strings.Repeat("x", maxHeader)}),
	} {
		if _, err := readAnswer(bytes.NewReader(data)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	flood := strings.NewReader(strings.Repeat("\n", 3*maxAnswer))
	if _, err := readAnswer(flood); err == nil || flood.Len() < maxAnswer {
		t.Errorf("an endless answer: error %v, and %d bytes were not read", err, flood.Len())
	}
}
