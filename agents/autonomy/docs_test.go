package autonomy_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"glasshouse/agents/autonomy"
	"glasshouse/policy"
)

// TestDocumentedLevels compares the tables in docs/concepts/autonomy.md with the defaults.
func TestDocumentedLevels(t *testing.T) {
	text, err := os.ReadFile("../../docs/concepts/autonomy.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(text)
	for sign, name := range map[autonomy.Sign]string{
		autonomy.Repeat: "the same call again: told at, person at, stopped at", autonomy.Cycle: "rounds of the same calls", autonomy.Monologue: "texts in a row without a call",
		autonomy.Errors: "the same failure of a tool", autonomy.Stalled: "turns that change no file", autonomy.Burn: "thousands of tokens without progress",
	} {
		row := "| " + name
		for level := policy.Guided; level <= policy.Full; level++ {
			l := autonomy.Ladders[level][sign]
			row += fmt.Sprintf(" | %d, %s, %d", l.Warn, dash(l.Ask), l.Stop)
		}
		if !strings.Contains(doc, row+" |") {
			t.Errorf("docs/concepts/autonomy.md has no row %q", row)
		}
	}
	for name, row := range map[string]func(l policy.Level, x autonomy.Timers) string{
		"| a run altogether": func(l policy.Level, x autonomy.Timers) string { return hours(x.Wall) + ", then " + end(l, "a person") },
		"| nothing done: told, then": func(l policy.Level, x autonomy.Timers) string {
			return hours(x.Idle) + ", " + hours(2*x.Idle) + " " + end(l, "a person")
		},
		"| one step: told, then": func(l policy.Level, x autonomy.Timers) string {
			if x.Step < time.Hour {
				return fmt.Sprintf("%d min, %d min %s", int(x.Step.Minutes()), int(2*x.Step.Minutes()), end(l, "a person"))
			}
			return hours(x.Step) + ", " + hours(2*x.Step) + " " + end(l, "a person")
		},
		"| heartbeats missed": func(_ policy.Level, x autonomy.Timers) string { return fmt.Sprintf("restart after %d", x.Missed) },
	} {
		want := name
		for level := policy.Guided; level <= policy.Full; level++ {
			want += " | " + row(level, autonomy.TimersOf[level])
		}
		if !strings.Contains(doc, want+" |") {
			t.Errorf("docs/concepts/autonomy.md has no row %q", want)
		}
	}
}

func dash(n int) string {
	if n == 0 {
		return "–"
	}
	return strconv.Itoa(n)
}

func hours(d time.Duration) string {
	if d < time.Hour {
		return fmt.Sprintf("%d min", int(d.Minutes()))
	}
	return fmt.Sprintf("%d h", int(d.Hours()))
}

func end(l policy.Level, guided string) string {
	if l == policy.Guided {
		return guided
	}
	return "stopped"
}
