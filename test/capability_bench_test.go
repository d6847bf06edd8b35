//go:build bench

package test_test

import (
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"glasshouse/api/wire"
	"glasshouse/capability/engine"
	"glasshouse/capability/engine/pure"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/govern"
)

// only resolves each reference to one capability.
type only struct{ c *engine.Installed }

func (o only) Resolve(ref string) (*engine.Installed, error) {
	if ref != o.c.ID {
		return nil, fault.Newf(fault.NotFound, "only", ref, "no such capability")
	}
	return o.c, nil
}

func TestBenchCapability(t *testing.T) {
	t.Run("kernel", benchPureCall)
	t.Run("daemon", benchDaemonCall)
}

// benchPureCall calls a small pure function through the policy engine with an audit log on disk.
// A call does not wait for its entry unless the queue of entries is full, so the benchmark
// reports one figure for a few calls and one for the sustained rate.
func benchPureCall(t *testing.T) {
	all, err := manifest.Read("m.rtfs", []byte(manifests))
	if err != nil {
		t.Fatal(err)
	}
	c := openChain(t, onDisk(t))
	k := govern.New(govern.Config{Chain: c, Dir: filepath.Join(t.TempDir(), "ca")})
	defer k.Close()
	in := &engine.Installed{Capability: all[0], Digest: "sha256:" + all[0].ID}
	e := pure.New()
	if err := e.Prepare(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	k.Serve(only{in}, map[manifest.Runtime]engine.Engine{manifest.RTFS: e})
	call := func() {
		out, err := k.Call(t.Context(), govern.Request{Capability: in.ID, Input: json.RawMessage(`{"x":21}`), Operator: true})
		if err != nil || string(out.Output) != `{"y":42}` {
			t.Fatalf("%s, %v", out.Output, err)
		}
	}
	var took []time.Duration
	for batch := range 50 {
		for range 100 {
			began := time.Now()
			call()
			if batch > 5 { // the first ones warm up
				took = append(took, time.Since(began))
			}
		}
		if err := k.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	const many = 20_000
	began := time.Now()
	for range many {
		call()
	}
	if err := k.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	figures("A capability that is a small pure function, through the kernel (load "+load()+")",
		figure{name: "a call, p50", value: micros(quantile(took, 0.5)), unit: "µs", target: 20},
		figure{name: "a call, p99", value: micros(quantile(took, 0.99)), unit: "µs"},
		figure{name: "called without end, until all is recorded", value: micros(time.Since(began) / many), unit: "µs"},
	)
}

// benchDaemonCall calls the same function over the daemon's socket and compares it with requests
// that do nothing.
func benchDaemonCall(t *testing.T) {
	h := open(t, "")
	p := &publisher{h, shop(t)}
	p.does("capability", "register", "m.rtfs")
	race(t, "a pure capability over the daemon's socket", 2000, []*contestant{
		{name: "a request that does nothing: GET /health", run: func() error { return h.Health(t.Context()) }},
		{name: "POST /capabilities/math.double/call", run: func() error {
			_, err := h.Call(t.Context(), "math.double", wire.Call{Input: json.RawMessage(`{"x":21}`)})
			return err
		}},
	})
}
