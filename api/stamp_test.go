package api

import (
	"encoding/json"
	"strings"
	"testing"

	"glasshouse/api/wire"
)

// TestClientsCannotSetRuleOwner verifies that the API has no field for the owner of a rule,
// because a rule may use the secrets of its owner.
func TestClientsCannotSetRuleOwner(t *testing.T) {
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
			t.Errorf("got stored rules %s", raw)
		}
	}
}
