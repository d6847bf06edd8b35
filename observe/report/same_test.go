package report_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"glasshouse/observe/report"
)

// Counts of many distinct things are estimates. Two reports of the same events must have the
// same estimates.
func TestReportsOfTheSameEventsAreEqual(t *testing.T) {
	s := newSession().fork(1, 42, "sh").exec(42, "/bin/sh", "sh")
	for n := range 6000 {
		s.file(42, "create", fmt.Sprintf("/work/f%d", n), 0)
	}
	var first []byte
	for n := range 4 {
		r, err := report.Make(t.Context(), s.source(), report.Options{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			first = got
		}
		if string(got) != string(first) {
			t.Fatalf("report %d differs from the first of the same events: got %.200s…, want %.200s…", n, got, first)
		}
	}
}
