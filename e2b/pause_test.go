package e2b

import (
	"errors"
	"testing"

	"glasshouse/jail"
)

// After a failure of the store, the sandbox's state matches its jail, and the next request
// succeeds.
func TestStoreFailureKeepsState(t *testing.T) {
	disk := errors.New("no space left on device")
	for _, c := range []struct {
		name       string
		record     State // the state whose recording fails
		path, body string
		was, then  State // state of the sandbox
		jail       jail.State
		next       int // status of the same request afterwards
	}{
		{"pause begins", Pausing, "pause", "", Running, Running, jail.Running, 204},
		{"pause ends", Paused, "pause", "", Running, Running, jail.Running, 204},
		{"resume begins", Resuming, "resume", `{"timeout":60}`, Paused, Paused, jail.Stopped, 201},
		{"resume ends", Running, "resume", `{"timeout":60}`, Paused, Paused, jail.Stopped, 201},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newFakeDaemon(t)
			box := d.create(`{"templateID":"base"}`)
			at := "/sandboxes/" + box.SandboxID
			if c.was == Paused {
				d.api(204, "POST", at+"/pause", "")
			}
			snaps := len(d.snaps)
			d.failWith("Put "+string(c.record), disk)
			d.api(507, "POST", at+"/"+c.path, c.body)
			d.failWith("Put "+string(c.record), nil)
			if got := d.handle(box.SandboxID).box.Load().State; got != c.then {
				t.Errorf("the sandbox is %s, want %s", got, c.then)
			}
			if got := d.jails[d.handle(box.SandboxID).box.Load().Jail].State; got != c.jail {
				t.Errorf("its jail is %s, want %s", got, c.jail)
			}
			if len(d.snaps) != snaps {
				t.Errorf("there are %d snapshots, want %d as before", len(d.snaps), snaps)
			}
			d.api(c.next, "POST", at+"/"+c.path, c.body)
		})
	}
}
