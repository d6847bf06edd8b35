package cli

import (
	"strings"
	"testing"
)

func TestArgumentsAreCompleted(t *testing.T) {
	answers := map[string]string{
		"GET /jails":     items(`{"id":"j-aaaaaaaaaaaa","name":"web","state":"running"}`, `{"id":"j-bbbbbbbbbbbb","name":"two words","state":"stopped"}`, `{"id":"j-cccccccccccc","name":"`+escapedName+`","state":"paused"}`),
		"GET /snapshots": items(`{"id":"s-aaaaaaaaaaaa","name":"before","jail":"j-aaaaaaaaaaaa"}`),
		"GET /chat/run":  items(`{"id":"r-1","state":"paused","goal":"fix\nit"}`),
		"GET /approvals": items(`{"id":"a-1","title":"git push"}`),
		"GET /tokens":    items(`{"id":"t-1","name":"ann","role":"viewer"}`),
	}
	const directive = "\n:"
	for _, c := range []struct{ line, want string }{
		{"jail stop ~", "web\trunning\nj-aaaaaaaaaaaa\trunning\nj-bbbbbbbbbbbb\tstopped\nj-cccccccccccc\tpaused" + directive + "4"},
		{"jail stop w", "web\trunning" + directive + "4"},
		{"jail stop web w", directive + "4"}, // already given
		{"jail stop web j-b", "j-bbbbbbbbbbbb\tstopped" + directive + "4"},
		{"jail show web ~", directive + "0"},
		{"exec w", "web\trunning" + directive + "4"},
		{"exec web l", directive + "0"},
		{"files ls w", "web:\trunning" + directive + "6"},
		{"files ls web:/e", directive + "0"},
		{"snapshot show b", "before\tof j-aaaaaaaaaaaa" + directive + "4"},
		{"branch w", "web\trunning" + directive + "4"},
		{"rewind web b", "before\tof j-aaaaaaaaaaaa" + directive + "4"},
		{"agent logs ~", "r-1\tpaused: fix\\nit" + directive + "4"},
		{"approve ~", "a-1\tgit push" + directive + "4"},
		{"approval show ~", "a-1\tgit push" + directive + "4"},
		{"token rm ~", "t-1\tann, viewer" + directive + "4"},
		{"jail ls -o ~", "table\njson\nyaml\nname" + directive + "4"},
	} {
		t.Run(c.line, func(t *testing.T) {
			d := newScriptedDaemon(t, answers)
			args := strings.Fields(c.line)
			if args[len(args)-1] == "~" {
				args[len(args)-1] = ""
			}
			code, out, _ := runWithoutDaemon(t, map[string]string{"HOME": t.TempDir(), "GLASSHOUSE_ADDR": d.addr}, append([]string{"__complete"}, args...)...)
			if got, _, _ := strings.Cut("\n"+out, "\nCompletion ended"); code != 0 || strings.TrimSpace(got) != strings.TrimSpace(c.want) {
				t.Errorf("exit code %d, completions %q, want %q", code, got, c.want)
			}
		})
	}
	// Without a daemon nothing is completed, and none is started.
	code, out, _ := runWithoutDaemon(t, map[string]string{"HOME": t.TempDir(), "GLASSHOUSE_DATA": t.TempDir()}, "__complete", "jail", "stop", "")
	if code != 0 || strings.TrimSpace(out) != ":4" {
		t.Errorf("without a daemon: exit code %d, %q", code, out)
	}
}
