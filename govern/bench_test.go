package govern_test

import (
	"encoding/json"
	"log/slog"
	"path/filepath"
	"testing"

	"glasshouse/capability/engine"
	"glasshouse/capability/engine/pure"
	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/govern"
	"glasshouse/policy/chain"
	"glasshouse/store/storetest"
)

// singleCapability resolves one capability.
type singleCapability struct{ c *engine.Installed }

func (o singleCapability) Resolve(ref string) (*engine.Installed, error) {
	if ref != o.c.ID {
		return nil, fault.Newf(fault.NotFound, "only", ref, "no such capability")
	}
	return o.c, nil
}

// BenchmarkPureCall measures a call of a small pure function by an operator, with the audit
// log in SQLite on disk.
func BenchmarkPureCall(b *testing.B) {
	all, err := manifest.Read("m.rtfs", []byte(`(capability "math.double" :version "1.0.0" :description "Twice a number"
	  :input-schema [:map [:x :int]] :output-schema [:map [:y :int]] :effects []
	  :runtime {:type :rtfs} :implementation (fn [{:keys [x]}] {:y (* 2 x)}))`))
	must(b, err)
	dir := b.TempDir()
	s, err := storetest.Open(b, filepath.Join(dir, "g.db"))
	must(b, err)
	defer s.Close()
	key, err := chain.LoadKey(dir)
	must(b, err)
	c, err := chain.Open(b.Context(), chain.Config{Store: s.Chain(), Key: key, Log: slog.New(slog.DiscardHandler)})
	must(b, err)
	defer c.Close()
	k := govern.New(govern.Config{Chain: c, Dir: filepath.Join(dir, "ca")})
	defer k.Close()
	in := &engine.Installed{Capability: all[0], Digest: "sha256:math.double"}
	e := pure.New()
	must(b, e.Prepare(b.Context(), in))
	k.Serve(singleCapability{in}, map[manifest.Runtime]engine.Engine{manifest.RTFS: e})

	input := json.RawMessage(`{"x":21}`)
	b.ReportAllocs()
	for b.Loop() {
		out, err := k.Call(b.Context(), govern.Request{Capability: "math.double", Input: input, Operator: true})
		if err != nil || string(out.Output) != `{"y":42}` {
			b.Fatalf("%s, %v", out.Output, err)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
