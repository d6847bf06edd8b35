package govern

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestInheritDropsOwnedSecrets(t *testing.T) {
	for raw, want := range map[string]string{
		"":   "",
		"{}": "{}",
		`{ "egress": {"allow":[{"host":"a.example"}], "transform":[{"host":"a.example","headers":{"X":"y"}}]}}`:                                                                                                                         "", // unchanged
		`{"ca":"c-aaaaaaaaaaaa","egress":{"allow":[{"host":"a.example"}],"transform":[{"host":"a.example","headers":{"X":"y"},"filled":{"Y":[{"text":"Bearer "},{"secret":"key"}]},"owner":"t-1"},{"host":"b.example","headers":{}}]}}`: `{"ca":"c-aaaaaaaaaaaa","egress":{"allow":[{"host":"a.example"}],"transform":[{"host":"a.example","headers":{"X":"y"}},{"host":"b.example","headers":{}}]}}`,
	} {
		got, err := Inherit(json.RawMessage(raw))
		if err != nil {
			t.Errorf("%s: %v", raw, err)
		}
		if want == "" {
			want = raw
		}
		if raw == "" && len(got) > 0 || raw != "" && compact(t, got) != compact(t, json.RawMessage(want)) || strings.Contains(raw, "{ ") && string(got) != raw {
			t.Errorf("Inherit(%s) = %s, want %s", raw, got, want)
		}
	}
	if _, err := Inherit(json.RawMessage(`{"egress":{"transfrom":[]}}`)); err == nil {
		t.Error("Inherit with an unknown field: got no error")
	}
}

func compact(t *testing.T, raw json.RawMessage) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
