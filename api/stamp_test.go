package api

import (
	"encoding/json"
	"strings"
	"testing"

	"glasshouse/api/wire"
)

// TestNobodySaysThatARuleIsAnOwners: that a jail's requests carry secrets which are their
// owner's alone follows from what its rules say. The API has no words for that.
func TestNobodySaysThatARuleIsAnOwners(t *testing.T) {
	said := `{"allow":[{"host":"a.example","inject":[{"secret":"t-1:key","as":"bearer","owner":"t-1"}]}],
		"transform":[{"host":"a.example","headers":{},"filled":{"X":[{"secret":"key"}]},"owner":"t-1"}],"owner":"t-1"}`
	var e wire.Egress
	if err := json.Unmarshal([]byte(said), &e); err != nil {
		t.Fatal(err)
	}
	raw, err := governOf(nil, &e)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"transform", "filled", "owner"} {
		if strings.Contains(string(raw), word) {
			t.Errorf("a jail is governed by %s", raw)
		}
	}
}
