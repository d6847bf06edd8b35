package event_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"glasshouse/observe/event"
)

// The encoder caches encoded parts of earlier events. Its output must equal that of AppendJSON
// after any sequence of events.

func wantSame(t *testing.T, enc *event.Encoder, e *event.Event) {
	t.Helper()
	before := []byte("before ")
	want, got := e.AppendJSON(before), enc.Append(before, e)
	if !bytes.Equal(want, got) {
		t.Fatalf("AppendJSON: %s\nEncoder:    %s", want, got)
	}
}

func TestEncoderEqualsAppendJSON(t *testing.T) {
	d := die{rand.New(rand.NewPCG(7, 7))}
	var enc event.Encoder
	for range 20_000 {
		e := d.event(event.Types[d.IntN(len(event.Types))])
		wantSame(t, &enc, &e)
	}
	wantSame(t, &enc, &event.Event{})
}

// Each event differs in few fields from the previous one, so that most cached parts are used, and
// each of them becomes outdated at some time.
func TestEncoderEqualsAppendJSONForSimilarEvents(t *testing.T) {
	d := die{rand.New(rand.NewPCG(8, 8))}
	var enc event.Encoder
	var e event.Event
	changes := []func(o *event.Event){
		func(o *event.Event) { e.TS = o.TS },
		func(o *event.Event) { e.TS++ },
		func(o *event.Event) { e.NS = o.NS },
		func(o *event.Event) { e.Jail = o.Jail },
		func(o *event.Event) { e.PID = o.PID },
		func(o *event.Event) { e.TID = o.TID },
		func(o *event.Event) { e.TID += 16 * d.Int32N(3) }, // has the same cache slot as another thread
		func(o *event.Event) { e.HostPID = o.HostPID },
		func(o *event.Event) { e.Comm = o.Comm },
		func(o *event.Event) { e.NR = o.NR },
		func(o *event.Event) { e.NR = d.Int32N(3) * 64 }, // has the same cache slot as another call
		func(o *event.Event) { e.Name = o.Name },
		func(o *event.Event) { e.ABI = o.ABI },
		func(o *event.Event) { e.Args = o.Args },
		func(o *event.Event) { e.Args[d.IntN(6)]++ },
		func(o *event.Event) { e.Args = [6]uint64{} },
		func(o *event.Event) { e.Ret, e.Dur, e.Path = o.Ret, o.Dur, o.Path },
		func(o *event.Event) { e.Flags = o.Flags },
		func(o *event.Event) { e.Type = event.Types[d.IntN(len(event.Types))] },
		func(*event.Event) { e.Type = event.Syscall },
		func(o *event.Event) { e = *o },
	}
	for range 200_000 {
		e.Seq++
		if o := d.event(event.Syscall); d.IntN(2) == 0 {
			changes[d.IntN(len(changes))](&o)
		}
		wantSame(t, &enc, &e)
	}
}

func TestEncoderDoesNotAllocate(t *testing.T) {
	var enc event.Encoder
	buf := make([]byte, 0, 4096)
	for _, r := range day {
		if n := testing.AllocsPerRun(100, func() { buf = enc.Append(buf[:0], r.e) }); n != 0 {
			t.Errorf("%s: %v allocations", r.name, n)
		}
	}
}
