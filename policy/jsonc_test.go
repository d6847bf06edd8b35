package policy

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// plain returns a value as encoding/json would decode it.
func (v *value) plain() any {
	switch v.kind {
	case kindObject:
		m := map[string]any{}
		for i := range v.members {
			m[v.members[i].key] = v.members[i].plain()
		}
		return m
	case kindArray:
		all := []any{}
		for i := range v.items {
			all = append(all, v.items[i].plain())
		}
		return all
	case kindString:
		return v.text
	case kindNumber:
		f, _ := strconv.ParseFloat(v.text, 64)
		return f
	case kindBool:
		return v.truth
	}
	return nil
}

// FuzzJSONC checks that all JSON is accepted, with the same result as encoding/json.
func FuzzJSONC(f *testing.F) {
	for _, s := range []string{`{"a": [1, -2.5e3, true, null, "\u00e9\ud83d\ude00\n"]}`, `{"a": 1, "a": {"b": []}}`, "[]", `"x"`, "{ // c\n\"a\": 1, /* d */ }", "0", "-"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := parseJSONC("f", []byte(s))
		if err != nil && !strings.Contains(err.Error(), "f") {
			t.Errorf("%v does not name the file", err)
		}
		var want any
		if !utf8.ValidString(s) || strings.HasPrefix(s, "\ufeff") || json.Unmarshal([]byte(s), &want) != nil {
			return
		}
		if err != nil {
			if !strings.Contains(err.Error(), "deep") {
				t.Errorf("%q is JSON: %v", s, err)
			}
			return
		}
		if got := v.plain(); !reflect.DeepEqual(got, want) {
			t.Errorf("%q = %v, want %v", s, got, want)
		}
	})
}
