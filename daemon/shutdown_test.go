package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"os/exec"
	"strings"
	"testing"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
)

// Jails survive the end of the daemon, except when the host shuts down.
func TestJailsEndWhenTheHostShutsDown(t *testing.T) {
	for _, stops := range []bool{false, true} {
		d := &Daemon{log: slog.New(slog.DiscardHandler), serveErr: make(chan error, 1), cgroups: "glasshouse-test" + strings.ToLower(rand.Text()[:8])}
		d.stopping = func() bool { return stops }
		tree, err := cgroup.New(d.cgroups)
		if errors.Is(err, fault.Unsupported) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		c, err := tree.Create("j-aaaaaaaaaaaa", cgroup.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			cmd.Process.Kill()
			cmd.Wait()
			if err := errors.Join(c.Destroy(context.Background()), tree.Remove()); err != nil {
				t.Error(err)
			}
		})
		if err := c.AddPID(cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := d.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if left, err := c.Populated(); err != nil || left == stops {
			t.Errorf("the host shuts down: %v; the jail runs: %v, %v", stops, left, err)
		}
	}
}
