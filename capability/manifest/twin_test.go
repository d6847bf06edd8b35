package manifest_test

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glasshouse/capability/manifest"
	"glasshouse/capability/rtfs/form"
	"glasshouse/capability/schema"
)

// same fails the test unless two capabilities are equal. Types are compared by their source
// form.
func same(t *testing.T, want, got *manifest.Capability) {
	t.Helper()
	if d := cmp.Diff(want, got, plain); d != "" {
		t.Errorf("the result differs (-want +got):\n%s", d)
	}
	for _, p := range [][2]*schema.Type{{want.Input, got.Input}, {want.Output, got.Output}} {
		if (p[0] == nil) != (p[1] == nil) || p[0] != nil && !form.Equal(p[0].Form(), p[1].Form()) {
			t.Errorf("the types differ: %v and %v", p[0], p[1])
		}
	}
	if digest(t, want) != digest(t, got) {
		t.Errorf("digests differ")
	}
}

func digest(t *testing.T, c *manifest.Capability) string {
	t.Helper()
	d, err := c.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func twin(t *testing.T, c *manifest.Capability) string {
	t.Helper()
	b, err := c.JSON()
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(b) {
		t.Fatalf("JSON = %s, which is invalid", b)
	}
	return string(b)
}

var samples = []string{
	whole,
	`(capability "a" :implementation (fn [input] (str "<" (get input :x)))) `,
	"(capability \"a\" :implementation (fn [{:keys [x]}] ; a comment stays\n  (* x 2)))",
	`(capability "a" :runtime {:type :wasm :module "bin/a.wasm" :entrypoint ["a"] :warm {:max 3}} :egress [:none])`,
	`(capability "a" :runtime {:type :native :entrypoint ["x"]} :approval {:tier :preapproved})`,
	`(capability "a" :runtime {:type :microvm :image "x" :entrypoint ["x"] :stdio :text} :metadata {"odd key" [1 2.0 nil true {:a "b"}]})`,
	`(capability "a" :input-schema [:map [:k {:optional true} [:enum ":odd" "x" :y 1.0]] [:n [:and :int [:> 3]]]] :output-schema :string? :implementation (fn [x] x))`,
	`(capability "a" :input-schema [:map ["s" :string] [:t :string ?]] :output-schema [:or :int [:vector [:union :string :nil]]] :implementation (fn [x] x))`,
}

func TestJSONRoundTrip(t *testing.T) {
	for _, text := range append(samples, places(t)) {
		c := read(t, text)
		j := twin(t, c)
		back := read(t, j)
		same(t, c, back)
		if again := twin(t, back); again != j {
			t.Errorf("the JSON of the result differs:\n%s\n%s", j, again)
		}
		if back.Source != j {
			t.Errorf("Source = %s, want the twin", back.Source)
		}
	}
}

func TestTextRoundTrip(t *testing.T) {
	for _, text := range append(samples, places(t)) {
		c := read(t, text)
		same(t, c, read(t, c.Text()))
	}
}

func TestJSONForm(t *testing.T) {
	const want = `{"capability":"places.search","description":"Search for nearby places using Google Places API","version":"1.0.0",` +
		`"input-schema":[":map",[":query",":string"],[":location",[":map",[":lat",":float"],[":lng",":float"]]],` +
		`[":filters",{"optional":true},[":map",[":open_now",{"optional":true},":bool"],[":min_rating",{"optional":true},[":and",":float",[":>=",0],[":<=",5]]],` +
		`[":types",{"optional":true},[":vector",":string"]]]]],` +
		`"output-schema":[":map",[":results",[":vector",[":map",[":place_id",":string"],[":name",":string"],[":address",":string"],` +
		`[":rating",{"optional":true},":float"],[":open_now",{"optional":true},":bool"]]]],[":next_page_token",{"optional":true},":string"]],` +
		`"effects":["network"],` +
		`"runtime":{"type":"microvm","image":"python:3.12-slim","entrypoint":["uvicorn","local_places.main:app","--host","0.0.0.0","--port","8000"],` +
		`"port":8000,"startup-timeout-ms":5000,"health-check":"/ping"},` +
		`"filesystem":{"mounts":[{"host":"capabilities/places/src","guest":"/app","mode":"ro"}],"quota-mb":100},` +
		`"network":{"mode":"proxy","allowed-hosts":["places.googleapis.com","maps.googleapis.com"],"allowed-ports":[443],"egress-rate-limit":100},` +
		`"secrets":["GOOGLE_PLACES_API_KEY"],"resources":{"cpu-shares":256,"memory-mb":512,"timeout-ms":30000}}`
	if got := twin(t, read(t, places(t))); got != want {
		t.Errorf("JSON =\n%s\nwant\n%s", got, want)
	}
}

func TestTypesInJSON(t *testing.T) {
	want := read(t, `(capability "a" :input-schema [:map [:query :string] [:n {:optional true} :int]] :implementation (fn [x] x))`)
	for _, s := range []string{
		`["map",[":query",":string"],[":n",{"optional":true},":int"]]`,
		`["map",["query","string"],["n",{"optional":true},"int"]]`,
		`"[:map [:query :string] [:n {:optional true} :int]]"`,
	} {
		got := read(t, `{"capability":"a","implementation":"(fn [x] x)","input-schema":`+s+`}`)
		same(t, want, got)
	}
	got := read(t, `{"capability":"a","implementation":"(fn [x] x)","input-schema":{"type":"object","properties":{"query":{"type":"string"}},"required":["query"]}}`)
	if err := got.Input.Check(form.NewMap(form.Keyword("query"), int64(5))); err == nil {
		t.Error("a query that is a number passes the JSON Schema")
	}
	if err := got.Input.Check(form.NewMap(form.Keyword("query"), "x")); err != nil {
		t.Errorf("a query does not pass the JSON Schema: %v", err)
	}
}

func TestDigestIgnoresLayout(t *testing.T) {
	a := read(t, places(t))
	b := read(t, strings.ReplaceAll(places(t), "  ", "   "))
	if digest(t, a) != digest(t, b) {
		t.Error("another layout has another digest")
	}
	seen := map[string]string{digest(t, a): "as it is"}
	for _, change := range [][2]string{
		{`"1.0.0"`, `"1.0.1"`}, {"8000\n", "8001\n"}, {":ro}", ":rw}"}, {"maps.google", "mops.google"}, {"[443]", "[444]"},
		{"timeout-ms 30000", "timeout-ms 30001"}, {":requires-per-use false", ":requires-per-use true"}, {":lat :float", ":lat :int"}, {":tier :standard", ":tier :elevated"},
	} {
		text := strings.Replace(places(t), change[0], change[1], 1)
		c := read(t, strings.Replace(text, ":effects [:network]", ":effects [:network :fs]", 1))
		d := digest(t, c)
		if as, twice := seen[d]; twice {
			t.Errorf("%s has the digest of %s", change[1], as)
		}
		seen[d] = change[1]
	}
}

func FuzzRead(f *testing.F) {
	for _, s := range samples {
		f.Add([]byte(s))
	}
	f.Add([]byte(`{"capability":"a.b","implementation":"(fn [x] x)","input-schema":["map",[":query",":string"]],"metadata":{"k":[1,null,{"a":2.5}]}}`))
	f.Add([]byte(`[{"capability":"a","runtime":{"type":"container","image":"x","entrypoint":["x"]},"network":{"allowed-hosts":["*.x"]},"effects":["network"]}]`))
	f.Add([]byte(`(capability "a" :metadata {:sandbox_runtime "{\"runtime_type\":\":wasm\",\"module\":\"x\"}"})`))
	f.Fuzz(func(t *testing.T, text []byte) {
		all, err := manifest.Read("fuzz", text)
		if err != nil {
			_ = err.Error()
			return
		}
		for _, c := range all {
			if !bytes.Contains(text, []byte(c.Source)) || c.Source == "" {
				t.Errorf("Source = %q, which is not in the text", c.Source)
			}
			same(t, c, read(t, twin(t, c)))
			same(t, c, read(t, c.Text()))
			if w := manifest.Widens(c, c); len(w) > 0 {
				t.Errorf("Widens of the same = %q", w)
			}
		}
	})
}

func BenchmarkRead(b *testing.B) {
	text, err := os.ReadFile("testdata/places.rtfs")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := manifest.Read("places.rtfs", text); err != nil {
			b.Fatal(err)
		}
	}
}
