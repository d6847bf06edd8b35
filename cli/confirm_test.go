package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestDestructiveCommandAsksAtTerminal(t *testing.T) {
	const removal, question = "DELETE /jails/" + aJail, "Remove " + aJail + " with all files? [y/N] "
	for _, tt := range []struct {
		name, flag, answer string
		asks, removes      bool
	}{
		{"confirmed", "", "y\n", true, true},
		{"confirmed in full", "", "YES\n", true, true},
		{"no answer", "", "\n", true, false},
		{"no", "", "n\n", true, false},
		{"end of input", "", "\x04", true, false},
		{"force", "--force", "", false, true},
		{"force, short", "-f", "", false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newScriptedDaemon(t, map[string]string{removal: "204 "})
			con := newConsole(t)
			args := []string{"--addr", d.addr, "jail", "rm", aJail}
			if tt.flag != "" {
				args = append(args, tt.flag)
			}
			ended := con.start(t.Context(), nil, args...)
			if tt.asks {
				con.waitFor(question)
				if got := d.asked(); got != "" {
					t.Errorf("requests before the answer: %s", got)
				}
				con.typeText(tt.answer)
			}
			code := 0
			if !tt.removes {
				code = 1
				con.waitFor("not confirmed, nothing was changed")
			}
			con.wait(ended, code)
			if got := strings.Contains(d.asked(), removal); got != tt.removes {
				t.Errorf("removed: %v, want %v", got, tt.removes)
			}
			if !tt.asks && strings.Contains(con.seen, "[y/N]") {
				t.Errorf("the terminal shows %q, want no question", con.seen)
			}
		})
	}
	d := newScriptedDaemon(t, map[string]string{removal: "204 "})
	if code, _, errs := d.run("", "jail", "rm", aJail); code != 0 || errs != "" || !strings.Contains(d.asked(), removal) {
		t.Errorf("without a terminal: exit code %d, %q, requests %q; want the removal without a question", code, errs, d.asked())
	}
}

// The commands that delete data are those of this table, and each has the flag.
func TestDestructiveCommandsHaveForce(t *testing.T) {
	c := &command{env: Env{Getenv: func(string) string { return "" }}}
	root, seen := c.root(), map[string]bool{}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			_, path, _ := strings.Cut(sub.CommandPath(), " ")
			f := sub.Flags().Lookup("force")
			if confirmations[path] != "" {
				seen[path] = f != nil && f.Shorthand == "f"
			} else if name := sub.Name(); name == "rm" || name == "prune" {
				t.Errorf("%s does not ask for confirmation", path)
			}
			walk(sub)
		}
	}
	walk(root)
	for path := range confirmations {
		if !seen[path] {
			t.Errorf("%s does not exist or has no -f/--force", path)
		}
	}
}
