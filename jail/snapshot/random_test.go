package snapshot_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/rootfs"
	"glasshouse/jail/snapshot"
)

// drawer draws random numbers from the kernel in three ways. It does so again when /tmp/go
// exists, also in a child that it then forks. The last line is from a generator with its state
// in ordinary memory.
const drawer = `
import os, random, secrets, time
def draw():
    return os.urandom(16).hex() + "\n" + secrets.token_hex(16) + "\n" + random.SystemRandom().randbytes(16).hex() + "\n"
draw()
random.random()
open("/tmp/py-ready", "w").close()
while not os.path.exists("/tmp/go"):
    time.sleep(0.01)
drawn = draw()
r, w = os.pipe()
if os.fork() == 0:
    os.write(w, draw().encode())
    os._exit(0)
os.wait()
drawn += os.read(r, 1000).decode() + draw() + random.randbytes(16).hex() + "\n"
open("/tmp/py-new", "w").write(drawn)
os.rename("/tmp/py-new", "/tmp/py-drawn")
`

// Debian 13 has glibc 2.41, whose getrandom(3) keeps its state in the process, in memory that
// the vDSO allocates since Linux 6.11.
func TestRandomNumbersDifferInBranchesOfTrixie(t *testing.T) {
	if os.Getenv("GLASSHOUSE_TEST") != "all" {
		t.Skip("creates a root filesystem from Debian's mirror: set GLASSHOUSE_TEST=all")
	}
	h := newHarness(t)
	trees := rootfs.New(rootfs.Config{Dir: filepath.Join(h.dir, "images")})
	if err := trees.Open(); err != nil {
		t.Fatal(err)
	}
	layer, err := trees.Resolve(t.Context(), jail.Rootfs{Debian: "trixie"})
	if errors.Is(err, fault.Unsupported) || errors.Is(err, fault.Unavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	h.root = layer.Dir
	h.reopen()

	j := h.running()
	h.install(j, "./testdata/random", "/tmp/random")
	h.background(j, "exec /tmp/random")
	h.background(j, "exec python3 -c '"+drawer+"'")
	h.eventually(j, "ls /tmp/py-ready /tmp/go-ready", "/tmp/go-ready\n/tmp/py-ready")
	for _, program := range []string{"python3", "random"} {
		// The flag of memory that is mapped with MAP_DROPPABLE (proc_pid_smaps(5)).
		flags := h.sh(j, `for p in /proc/[0-9]*; do case $(readlink $p/exe) in */`+program+`*) cat $p/smaps;; esac; done`)
		if !strings.Contains(flags, " dp") {
			t.Errorf("%s does not use the vDSO: it has no droppable memory", program)
		}
	}

	s := h.take(j, "")
	drawn := map[string]string{}
	var kept []string // numbers of the generator in ordinary memory
	boxes := append(h.branch(s.ID, 4), j)
	second := h.take(boxes[0], "")
	boxes = append(boxes, h.branch(second.ID, 2)...)
	for _, b := range boxes {
		h.sh(b, "touch /tmp/go; until test -e /tmp/py-drawn -a -s /tmp/go-drawn; do sleep 0.02; done")
		lines := strings.Fields(h.sh(b, "cat /tmp/go-drawn /tmp/py-drawn"))
		if len(lines) != 11 {
			t.Fatalf("%s drew %q", b, lines)
		}
		kept = append(kept, lines[10])
		for _, n := range lines[:10] {
			if other := drawn[n]; other != "" {
				t.Errorf("%s drew %s, the same as %s", b, n, other)
			}
			drawn[n] = string(b)
		}
	}
	if len(slices.Compact(kept)) != 1 {
		t.Errorf("the branches do not continue from the same state: Python's generator drew %q", kept)
	}

	// The CRIU of Debian trixie would copy the state into every branch.
	tools := t.TempDir()
	fetch := exec.Command("../../scripts/setup.sh", tools, "criu")
	fetch.Env = append(os.Environ(), "CRIU_RELEASE=trixie")
	if out, err := fetch.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	h.criu = filepath.Join(tools, "tools/bin/criu")
	h.reopen()
	_, err = h.keeper.Take(t.Context(), j, snapshot.TakeOptions{})
	if !errors.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "CRIU 4.1") || !strings.Contains(err.Error(), "4.2 is needed") || !strings.Contains(fault.RemedyOf(err), "make setup") {
		t.Errorf("Take with the CRIU of trixie = %v, remedy %q; want unsupported with a remedy", err, fault.RemedyOf(err))
	}
	h.sh(j, "true") // the jail continues
}
