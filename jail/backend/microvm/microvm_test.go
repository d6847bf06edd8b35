package microvm_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"glasshouse/host/cgroup"
	"glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/jail/backend/microvm"
)

// A host contains the directories of a test's daemons.
type host struct {
	dir, prefix string
	cache       string // directory of the caches
	guest       string

	firecracker string // path of Firecracker or its double; "" is QEMU
	double      bool

	log *slog.Logger // of daemons; nil is none
}

// testHost is the environment variable that passes a directory to a daemon in another process.
const testHost = "GLASSHOUSE_MICROVM_TEST_HOST"

// testShared is the environment variable with the result of sharedDir, for daemons in other processes.
const testShared = "GLASSHOUSE_MICROVM_TEST_SHARED"

// sharedDir returns the directory with what the tests share: a link to the agent, and the caches of daemons,
// because each template costs a boot. Tests that damage the caches have their own.
var sharedDir = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv(testShared); dir != "" {
		return dir, nil
	}
	guest, err := backendtest.Find("./cmd/glasshouse-guest")
	if err != nil {
		return "", err
	}
	dir, err := backendtest.SharedDir()
	if err != nil {
		return "", err
	}
	return dir, errors.Join(os.Symlink(guest, filepath.Join(dir, "guest")), os.Setenv(testShared, dir))
})

func newHost(t *testing.T) *host {
	t.Helper()
	dir := os.Getenv(testHost)
	inherited := dir != ""
	if !inherited {
		var err error
		dir, err = os.MkdirTemp("", "gh-vm-")
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv(testHost, dir)
	}
	shared, err := sharedDir()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(dir))
	h := &host{dir: dir, prefix: "glasshouse-" + hex.EncodeToString(sum[:4]), cache: shared, guest: filepath.Join(shared, "guest")}
	h.firecracker = os.Getenv(testFirecracker)
	h.double = h.firecracker != "" && os.Getenv(realFirecracker) == ""
	if !inherited {
		t.Cleanup(func() {
			if err := os.RemoveAll(dir); err != nil {
				t.Errorf("remove the daemon's directory: %v", err)
			}
			tree, err := cgroup.New(h.prefix)
			if err != nil {
				return
			}
			if err := tree.Remove(); err != nil {
				t.Errorf("cgroups were not removed: %v", err)
			}
		})
	}
	return h
}

// disk returns the path of the writable layer of a jail.
func (h *host) disk(p jail.Plan) string {
	if h.firecracker != "" {
		return filepath.Join(p.Dir, "disk.raw")
	}
	return filepath.Join(p.Dir, "disk.img")
}

// kernels are the directory in which setup puts a kernel, next to that of its programs, and that of the
// host.
func kernels() []string {
	var list []string
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		list = append(list, filepath.Join(dir, "../kernel"))
	}
	return append(list, "/")
}

func (h *host) daemon() *microvm.Backend {
	b := microvm.New(microvm.Config{
		Firecracker: h.firecracker, Kernels: kernels(), Guest: func() (string, error) { return h.guest, nil }, Emulate: true, CgroupPrefix: h.prefix,
		Cache: filepath.Join(h.cache, "cache"), Log: h.log, Templates: filepath.Join(h.cache, "templates"), Base: filepath.Join(h.dir, "base"),
	})
	if h.double {
		microvm.UseDouble(b)
	}
	return b
}

// TestContract checks the contract with an emulated processor, also on hosts with KVM.
func TestContract(t *testing.T) {
	h := newHost(t)
	backendtest.Run(t, func(*testing.T) jail.Backend { return h.daemon() }, contractOptions())
}

func contractOptions() backendtest.Options {
	o := backendtest.Options{Differs: map[string]string{
		"Checkpoint/Keeps/wiped": "the kernel of the machine does not see the restore, so it does not wipe memory for copies",
	}}
	if !backendtest.Thorough { // each clause boots machines, which takes seconds
		o.Without = []string{
			"KillLeavesNoProcess", "CleanAfterEveryDeath", "CleanInTheMiddleOfCreate", "TwentyAtOnce", "Owners", "WritesLandInTheUpper", "Mounts",
			"FailedCreateLeavesNothing", "StoppedJailStartsAgain", "MountShowsAStoppedJail", "Limits", "StatsArePlausible", "TwoJailsStayApart",
		}
		for _, clause := range []string{
			"Restored", "FullOfProcesses", "FullOfMemory", "KeepsOrRefuses", "CleanInTheMiddleOfRestore", "SealLayerAtRest", "SealLayerThenCrash",
			"CopyOfACopy", "CommandsGoOn", "Outward", "FailedRestore", "ProcessesDie", "CopyLayer",
		} {
			o.Without = append(o.Without, "Checkpoint/"+clause)
		}
		// The machine contains all state of its processes, so some kinds stand for the others.
		for _, kind := range backendtest.Kept() {
			if !slices.Contains([]string{"threads", "random-numbers"}, kind) {
				o.Without = append(o.Without, "Checkpoint/Keeps/"+kind)
			}
		}
	}
	if testing.Short() {
		o.Without = append(o.Without, "Inside", "FreezeAndThaw", "DoneClosesWhenInitDies", "Attacks", "Checkpoint", "Workspace", "Changes", "OpenFindsTheJailAgain")
	}
	return o
}
