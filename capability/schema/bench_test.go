package schema_test

import (
	"testing"

	"glasshouse/capability/schema"
)

const (
	placesText = `{:query "coffee" :location {:lat 51.5 :lng -0.1} :filters {:open_now true :min_rating 4 :types ["cafe" "bar"]}}`
	placesJSON = `{"query":"coffee","location":{"lat":51.5,"lng":-0.1},"filters":{"open_now":true,"min_rating":4,"types":["cafe","bar"]}}`
)

func TestCheckDoesNotAllocate(t *testing.T) {
	typ, v := typeOf(t, places), valueOf(t, placesText)
	if n := testing.AllocsPerRun(100, func() {
		if typ.Check(v) != nil {
			t.Fatal("the value does not fit")
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkCheck(b *testing.B) {
	typ, v := typeOf(b, places), valueOf(b, placesText)
	for b.Loop() {
		if err := typ.Check(v); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkExplain(b *testing.B) {
	typ, v := typeOf(b, places), valueOf(b, `{:query 1 :location {:lat 51.5}}`)
	for b.Loop() {
		if typ.Check(v) == nil {
			b.Fatal("it fits")
		}
	}
}

func BenchmarkFromJSON(b *testing.B) {
	typ, text := typeOf(b, places), []byte(placesJSON)
	for b.Loop() {
		if _, err := typ.FromJSON(text); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkToJSON(b *testing.B) {
	v := valueOf(b, placesText)
	for b.Loop() {
		if _, err := schema.ToJSON(v); err != nil {
			b.Fatal(err)
		}
	}
}
