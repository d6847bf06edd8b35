package form_test

import (
	"strings"
	"testing"

	"glasshouse/capability/rtfs/form"
)

func TestWithin(t *testing.T) {
	var v form.Value = "äöü"
	for range 100 { // its complete text would exceed the memory
		v = form.Vector{v, form.NewMap("k", v)}
	}
	for _, most := range []int{0, 1, 50, 103, 104, 105, 1000} {
		text, whole := form.Within(v, most)
		if whole || len(text) > most || len(text) < most-3 || !strings.HasPrefix(strings.Repeat("[", 100)+`"äöü" {"k" "äöü"}] {"k" ["äöü" `, text[:min(len(text), 130)]) {
			t.Errorf("Within(%d) = %.150q, %v", most, text, whole)
		}
	}
	if text, whole := form.Within(form.Vector{int64(1), "a"}, 7); text != `[1 "a"]` || !whole {
		t.Errorf("got %q, %v; want the whole of [1 \"a\"]", text, whole)
	}
}
