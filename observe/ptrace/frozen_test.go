package ptrace_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/observe/event"
	"glasshouse/observe/ptrace"
)

// A freezer is a cgroup for a jail.
type freezer struct {
	t             *testing.T
	dir           string
	file          string
	frozen, awake string
	state         string // the file with the frozen state
	isFrozen      string
}

// freezers creates one freezer for each cgroup version of this host.
func freezers(t *testing.T) map[string]*freezer {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making cgroups needs root")
	}
	all := map[string]*freezer{}
	for _, dir := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil && all["second"] == nil {
			all["second"] = &freezer{t: t, dir: dir, file: "cgroup.freeze", frozen: "1", awake: "0", state: "cgroup.events", isFrozen: "frozen 1"}
		}
	}
	if _, err := os.Stat("/sys/fs/cgroup/freezer/cgroup.procs"); err == nil {
		all["first"] = &freezer{t: t, dir: "/sys/fs/cgroup/freezer", file: "freezer.state", frozen: "FROZEN", awake: "THAWED", state: "freezer.state", isFrozen: "FROZEN"}
	}
	if len(all) == 0 {
		t.Skip("no freezer at a known place")
	}
	for _, f := range all {
		dir, err := os.MkdirTemp(f.dir, "gh-ptrace-")
		if err != nil {
			t.Skip(err)
		}
		f.dir = dir
		t.Cleanup(func() {
			for i := 0; os.Remove(dir) != nil; i++ { // its last process may still be exiting
				if i == 1000 {
					t.Errorf("%s was not removed", dir)
					return
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	return all
}

func (f *freezer) write(file, s string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, file), []byte(s), 0); err != nil {
		f.t.Fatal(err)
	}
}

func (f *freezer) freeze() {
	f.t.Helper()
	f.write(f.file, f.frozen)
	for {
		b, err := os.ReadFile(filepath.Join(f.dir, f.state))
		if err != nil {
			f.t.Fatal(err)
		}
		if strings.Contains(string(b), f.isFrozen) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func TestFrozenJail(t *testing.T) {
	for name, f := range freezers(t) {
		t.Run(name+"-generation", func(t *testing.T) {
			j := newJail(t)
			f.t = t
			f.write("cgroup.procs", fmt.Sprint(j.pid))
			j.sh("sleep 1000 & $SELF threads 2 100000000 &")
			t.Cleanup(func() { f.write(f.file, f.awake) })
			l := &log{}
			src := &ptrace.Source{}

			f.freeze()
			w, err := src.Attach(ctx(t), j.target(event.Selection{}), l)
			if err != nil {
				t.Fatalf("attach to a frozen jail: %v", err)
			}
			f.write(f.file, f.awake)
			j.sh("$SELF getppid 10; echo")
			drain(t, w)
			// The busy program is process 3.
			if got := l.all(func(e *event.Event) bool { return called("getppid")(e) && e.PID > 3 }); len(got) != 10 {
				t.Errorf("%d calls are recorded after the thaw, want 10", len(got))
			}

			f.freeze()
			drain(t, w)
			if err := w.Release(); err != nil {
				t.Fatal(err)
			}
			f.write(f.file, f.awake)
			at := l.Last()
			j.sh("$SELF getppid 10; kill $!")
			if l.Last() != at {
				t.Error("events of a released jail are recorded")
			}
			if s := j.states(); strings.Contains(s, ") t ") {
				t.Errorf("stopped processes remain:\n%s", s)
			}
		})
	}
}
