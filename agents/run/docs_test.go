package run

import (
	"os"
	"strings"
	"testing"
)

// TestDocumentedTransitionsMatch compares the table in docs/reference/runs.md with next.
func TestDocumentedTransitionsMatch(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/runs.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(text), "| from | to |\n| --- | --- |\n")
	if !ok {
		t.Fatal("docs/reference/runs.md has no table of transitions")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	documented := map[State]string{}
	for row := range strings.Lines(table) {
		cells := strings.Split(row, "|")
		to := strings.NewReplacer(" (at another time)", "", "nothing, ever", "").Replace(strings.TrimSpace(cells[2]))
		for _, from := range strings.Split(strings.TrimSpace(cells[1]), ", ") {
			documented[State(strings.Replace(from, "–", "", 1))] = to
		}
	}
	for from, list := range next {
		var to []string
		for _, s := range list {
			to = append(to, string(s))
		}
		if got, ok := documented[from]; !ok || got != strings.Join(to, ", ") {
			t.Errorf("docs/reference/runs.md has transitions from %q to %q, want %q", from, got, to)
		}
	}
	if len(documented) != len(next) {
		t.Errorf("docs/reference/runs.md has %d states, want %d", len(documented), len(next))
	}
}
