package event_test

import (
	"bufio"
	"encoding/json"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"glasshouse/observe/event"
)

// manual returns the lines of docs/reference/events.md.
func manual(t *testing.T) []string {
	t.Helper()
	f, err := os.Open("../../docs/reference/events.md")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var lines []string
	s := bufio.NewScanner(f)
	for s.Scan() {
		lines = append(lines, s.Text())
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestDocumentedEventsAreValid(t *testing.T) {
	seen := map[event.Type]bool{}
	for _, line := range manual(t) {
		if !strings.HasPrefix(line, "{") {
			continue
		}
		var e event.Event
		if err := event.Parse([]byte(line), &e); err != nil {
			t.Errorf("%v: %s", err, line)
		} else if got := string(e.AppendJSON(nil)); got != line {
			t.Errorf("documented as\n%s\nbut encoded as\n%s", line, got)
		}
		seen[e.Type] = true
	}
	for _, ty := range event.Types {
		if !seen[ty] {
			t.Errorf("the documentation has no record of type %s", ty)
		}
	}
}

// firstColumns returns the quoted texts in the first column of tables.
func firstColumns(lines []string) []string {
	var found []string
	for _, line := range lines {
		cell, ok := strings.CutPrefix(line, "| `")
		if !ok {
			continue
		}
		cell, _, _ = strings.Cut(cell, "` | ")
		found = append(found, strings.Split(cell, "`, `")...)
	}
	return found
}

func TestEveryFieldIsDocumented(t *testing.T) {
	named := map[string]bool{}
	for _, s := range firstColumns(manual(t)) {
		named[s] = true
	}
	d := die{rand.New(rand.NewPCG(3, 4))}
	written := map[string]bool{}
	for range 500 {
		for _, ty := range event.Types {
			e := d.event(ty)
			var fields map[string]any
			if err := json.Unmarshal(e.AppendJSON(nil), &fields); err != nil {
				t.Fatal(err)
			}
			for name := range fields {
				written[name] = true
			}
		}
	}
	for name := range written {
		if !named[name] {
			t.Errorf("%s is not documented", name)
		}
	}
}

func TestDocumentedFiltersAreValid(t *testing.T) {
	lines := manual(t)
	lines = lines[slices.Index(lines, "## Filters")+1:]
	if end := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "## ") }); end >= 0 {
		lines = lines[:end]
	}
	var keys []string
	for _, line := range lines {
		switch line {
		case "| written | means |":
			keys = nil
		case "| key | of | value |":
			keys = []string{}
		case "| filter | answers |":
			if len(keys) < 20 {
				t.Errorf("only these keys are documented: %v", keys)
			}
			keys = nil
		}
		for _, s := range firstColumns([]string{line}) {
			if keys == nil {
				if _, err := event.ParseFilter(s); err != nil {
					t.Errorf("%s: %v", s, err)
				}
				continue
			}
			keys = append(keys, s)
			if _, err := event.ParseFilter(s + ":1"); err != nil && strings.Contains(err.Error(), "unknown key") {
				t.Errorf("documented key %s: %v", s, err)
			}
		}
	}

	// The error for an unknown key lists all keys.
	_, err := event.ParseFilter("nokey:1")
	_, all, _ := strings.Cut(err.Error(), "keys are ")
	all, _, _ = strings.Cut(all, ".")
	in := strings.Join(firstColumns(lines), " ") + " "
	for _, key := range strings.Split(all, ", ") {
		if !strings.Contains(in, key+" ") {
			t.Errorf("the key %s is not documented", key)
		}
	}
}
