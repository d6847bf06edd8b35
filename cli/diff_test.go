package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"glasshouse/api/wire"
	"glasshouse/jail"
)

func TestDiffOfTwoJails(t *testing.T) {
	d := newTestEnv(t)
	d.jails.Diff = []jail.Change{
		{Path: "/etc/motd", Kind: "modified", Type: "file", Diff: "--- a/etc/motd\n+++ b/etc/motd\n@@ -1 +1 @@\n-old\n+\tnew \x1b[2J\n"},
		{Path: "/new", Kind: "renamed", Type: "file", From: "/old\x1b"},
	}
	d.startJail()
	s := d.output("snapshot JAIL --name base")
	b := strings.TrimSpace(d.wantOutput("branch base --name try"))

	d.wantOutput("diff "+s, "From snapshot "+s+" of "+string(d.jail), "To   jail "+string(d.jail), "modified  file     /etc/motd", `/old\x1b → /new`, "started         7 sleep 9")
	if d.wantOutput("diff "+s+" JAIL") == "" || d.wantOutput("diff base try", "To   jail "+b) == "" {
		t.Error("names and ids do not say the same")
	}
	d.wantOutput("diff JAIL "+s, "From jail "+string(d.jail), "To   snapshot "+s)
	if out := d.wantOutput("diff base try --processes", "sleep 9"); strings.Contains(out, "motd") {
		t.Errorf("diff --processes printed\n%s", out)
	}
	if out := d.wantOutput("diff base -u", "@@ -1 +1 @@\n-old\n+\tnew \x1b[2J\n", "# renamed"); strings.Contains(out, "sleep") {
		t.Errorf("output is not valid for patch(1):\n%s", out)
	}
	d.wantOutput("diff base -u --colour always", "\x1b[31m-old\x1b[0m\n")
	d.wantOutput("diff JAIL base -u", "@@ -1 +1 @@\n-old\n")
	if out := d.wantOutput("diff base --unified --html", "<!doctype html>"); strings.Contains(out, "\x1b") {
		t.Error("the page holds control characters")
	}
	var c wire.Comparison
	if err := json.Unmarshal([]byte(d.wantOutput("diff base --json")), &c); err != nil || c.From.Snapshot == "" || len(c.Files.List) != 2 || c.Files.List[1].From != "/old\x1b" {
		t.Errorf("as JSON: %+v, %v", c, err)
	}
	for line, want := range map[string]string{
		"diff JAIL --processes": "need a second snapshot", "diff JAIL nowhere": "no jail or snapshot", "diff " + s + " /etc": "paths select",
		"diff base --html --json": "exclude each other", "diff s-aaaaaaaaaaaa": "no such snapshot", "diff base j-aaaaaaaaaaaa": "no such jail",
	} {
		if code, out, errs := d.run(line); code == 0 || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d, %s%s; want an error with %q", line, code, out, errs, want)
		}
	}
}
