package cgroup_test

import (
	"testing"
	"time"

	"glasshouse/host/cgroup"
)

func TestKillAllSendsSIGTERMFirst(t *testing.T) {
	h := newHost(t)
	jail, err := h.tree.Create("jail", cgroup.Limits{})
	h.must(err)
	// One process ignores the signal, as the init of a jail; the other ends in order.
	ignores, initEnd := h.run(jail.AddPID, "trap '' TERM; echo ready; exec sleep 1000")
	ends, otherEnd := h.run(jail.AddPID, "trap 'sleep 0.1; echo ended; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
	for _, out := range []interface{ ReadString(byte) (string, error) }{ignores, ends} {
		if line, err := out.ReadString('\n'); line != "ready\n" {
			t.Fatalf("the process says %q, %v", line, err)
		}
	}
	h.must(h.tree.KillAll(h.soon(), 10*time.Second))
	if line, err := ends.ReadString('\n'); line != "ended\n" {
		t.Errorf("before its end the process said %q, %v, want that it ended by SIGTERM", line, err)
	}
	if err := initEnd(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("the process that ignores SIGTERM: %v, want that it was killed", err)
	}
	otherEnd()
}
