package snapshot_test

import (
	"encoding/json"
	"io"
	"testing"
	"time"

	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/init/protocol"
	"glasshouse/jail/snapshot"
)

// A notice is the branch notice that a jail can read.
type notice struct {
	Jail, Snapshot, Hostname, Seed string
	Branch                         int
	Time                           time.Time
}

// notice reads the notice of a jail without waiting for it.
func (h *harness) notice(jid id.Jail) (n notice) {
	h.t.Helper()
	files, err := h.jails.Files(h.t.Context(), jid)
	if err != nil {
		h.t.Fatal(err)
	}
	defer files.Close()
	r, info, err := files.Read(h.t.Context(), "/run/glasshouse/branch.json", 0, 1<<10)
	if err != nil {
		h.t.Errorf("%s has no notice: %v", jid, err)
		return n
	}
	defer r.Close()
	text, err := io.ReadAll(r)
	if err == nil {
		err = json.Unmarshal(text, &n)
	}
	if err != nil || info.Mode != 0o644 {
		h.t.Errorf("the notice of %s is %s with mode %v, %v", jid, text, info.Mode, err)
	}
	return n
}

// The notice of a branch exists when the branch is reported. Its seed differs in every branch,
// also in branches with the same host name.
func TestBranchNotice(t *testing.T) {
	h := newHarness(t)
	j := h.running()
	h.sh(j, "mkdir -p /etc/glasshouse/branch.d; printf '#!/bin/sh\\ngrep -o $GLASSHOUSE_SEED /run/glasshouse/branch.json >/run/hooked\\n' >/etc/glasshouse/branch.d/10; chmod +x /etc/glasshouse/branch.d/10")
	h.background(j, counter)
	h.checkCounting(j, 1)
	s := h.take(j, "")
	seeds := map[string]string{}
	check := func(name string, jid id.Jail, hostname string, branch int) {
		t.Helper()
		n := h.notice(jid)
		if n.Jail != string(jid) || n.Snapshot != string(s.ID) || n.Hostname != hostname || n.Branch != branch || time.Since(n.Time).Abs() > time.Minute {
			t.Errorf("the notice of %s is %+v", name, n)
		}
		if other := seeds[n.Seed]; len(n.Seed) != 2*protocol.SeedSize || other != "" {
			t.Errorf("the seed of %s is %q, the same as that of %q", name, n.Seed, other)
		}
		seeds[n.Seed] = name
		h.eventually(jid, "cat /run/hooked", n.Seed)
	}
	for _, name := range []string{"the first", "the second"} {
		children, err := h.keeper.Branch(t.Context(), s.ID, 1, snapshot.Overrides{Hostname: "fixed"})
		if err != nil || children[0].Err != nil {
			t.Fatal(err, children)
		}
		check(name, children[0].Jail.ID, "fixed", 1)
	}
	if err := h.keeper.FillSpares(t.Context(), s.ID, 1); err != nil {
		t.Fatal(err)
	}
	copied := h.branch(s.ID, 1)[0]
	check("a spare", copied, string(copied), 1)
	if _, err := h.keeper.Rewind(t.Context(), j, s.ID, jail.RewindOptions{}); err != nil {
		t.Fatal(err)
	}
	check("the jail that was rewound", j, string(j), 0)

	// A notice that cannot be written neither delays nor fails the operation.
	h.sh(j, "rm -r /run/glasshouse; mkfifo /run/glasshouse")
	s = h.take(j, "")
	h.checkCounting(h.branch(s.ID, 1)[0], 1)
}
