package id_test

import (
	"testing"

	"glasshouse/id"
)

func TestNewIsValidAndDistinct(t *testing.T) {
	seen := map[id.Jail]bool{}
	for range 1000 {
		j := id.NewJail()
		if !id.Valid('j', string(j)) || seen[j] {
			t.Fatalf("NewJail() = %q: invalid or seen before", j)
		}
		seen[j] = true
	}
	if s := string(id.NewSnapshot()); !id.Valid('s', s) {
		t.Errorf("NewSnapshot() = %q, not valid", s)
	}
	if a := string(id.NewApproval()); !id.Valid('a', a) {
		t.Errorf("NewApproval() = %q, not valid", a)
	}
	if x := string(id.NewExec()); !id.Valid('x', x) {
		t.Errorf("NewExec() = %q, not valid", x)
	}
}

func TestValidRejectsInvalidStrings(t *testing.T) {
	for _, s := range []string{"", "j-", "../../etc", "j-AAAAAAAAAAAA", "x-aaaaaaaaaaaa", "j-aaaaaaaaaaa/", "j-aaaaaaaaaaaaa"} {
		if id.Valid('j', s) {
			t.Errorf("Valid('j', %q) = true, want false", s)
		}
	}
}
