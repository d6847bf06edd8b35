package test_test

import (
	"strings"
	"testing"

	"glasshouse/api/client"
	"glasshouse/id"
)

func TestDiffOfBranches(t *testing.T) {
	h, j := counting(t)
	h.sh(j, "echo both > /root/f")
	s := h.says("snapshot", "create", string(j), "--name", "base")
	var kids []string
	for line := range strings.Lines(h.says("branch", s, "-n", "2")) {
		kids = append(kids, strings.TrimSpace(line))
	}
	if len(kids) != 2 {
		t.Fatalf("got branches %q, want two", kids)
	}
	h.sh(id.Jail(kids[0]), "echo one >> /root/f")
	h.sh(id.Jail(kids[1]), "echo two >> /root/f; echo new > /root/new")
	h.says("jail", "exec", "-d", kids[1], "--", "sleep", "4321")

	c, err := h.Compare(t.Context(), kids[0], kids[1], client.CompareOptions{Unified: true})
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]string{}
	for _, f := range c.Files.List {
		told[f.Path] = f.Kind + f.Diff
	}
	if !strings.Contains(told["/root/f"], "-one\n+two\n") || !strings.HasPrefix(told["/root/new"], "added") {
		t.Errorf("files: %+v", c.Files)
	}
	if p := c.Processes; len(p.Started) == 0 || p.Same < 2 || p.Unknown != "" {
		t.Errorf("processes: %+v", p)
	}
	if e := c.Events; e.Since == nil || e.Since.Jail != j || e.From.Unknown == "" && e.To.Total == 0 {
		t.Errorf("events: %+v", e)
	}
	if u := c.Usage; u == nil || u.From == nil || u.To == nil || u.To.Memory == 0 {
		t.Errorf("usage: %+v", u)
	}
	text := h.says("diff", kids[0], kids[1])
	for _, want := range []string{"From jail " + kids[0], "added     file     /root/new", "sleep 4321", "Events since record", "Memory"} {
		if !strings.Contains(text, want) {
			t.Errorf("diff lacks %q:\n%s", want, text)
		}
	}
	if page := h.says("diff", "base", kids[1], "--html", "-u"); !strings.HasPrefix(page, "<!doctype html>") || !strings.Contains(page, "&#43;two<") {
		t.Errorf("got HTML %.300s", page)
	}
	if patch := h.says("diff", "base", kids[1], "--unified", "--files"); !strings.Contains(patch, "+++ b/root/new") {
		t.Errorf("got patch %s", patch)
	}
	changes, err := client.Collect(h.Changes(t.Context(), id.Jail(kids[1]), client.ChangesOptions{Against: s, Path: "/root"}))
	if err != nil || len(changes) != 2 {
		t.Errorf("changes against the snapshot: %+v, %v", changes, err)
	}
	// The diff of a branch against its root filesystem includes changes from before the fork.
	all, err := client.Collect(h.Changes(t.Context(), id.Jail(kids[0]), client.ChangesOptions{Path: "/root"}))
	if err != nil || len(all) != 1 || all[0].Path != "/root/f" || all[0].Kind != "added" {
		t.Errorf("changes of a branch: %+v, %v", all, err)
	}
}
