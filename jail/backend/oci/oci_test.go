package oci_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"glasshouse/host/cgroup"
	"glasshouse/jail"
	"glasshouse/jail/backend/backendtest"
	"glasshouse/jail/backend/oci"
)

// runsc is the path of gVisor's binary, if it is not in PATH.
const runscPath = "GLASSHOUSE_RUNSC"

// binary returns the path of a runtime on this host, or its name if it is not installed.
func binary(runtime string) string {
	places := []string{runtime}
	switch runtime {
	case "runsc":
		places = append(places, os.Getenv(runscPath), "/var/lib/glasshouse/tools/bin/runsc")
	case "criu": // a distribution's may be too old for the kernel
		places = []string{"/var/lib/glasshouse/tools/bin/criu", "criu"}
	}
	for _, p := range places {
		if path, err := exec.LookPath(p); err == nil {
			return path
		}
	}
	return runtime
}

// A host contains the directories of a test's daemons.
type host struct {
	dir    string
	prefix string
}

// testHost is the environment variable that passes a directory to a daemon in another process.
const testHost = "GLASSHOUSE_OCI_TEST_HOST"

// newHost creates the directories of daemons. At the end of the test it checks that only
// persistent files remain.
func newHost(t testing.TB) *host {
	t.Helper()
	if dir := os.Getenv(testHost); dir != "" {
		return hostIn(dir)
	}
	dir := filepath.Join(os.TempDir(), "glasshouse-oci-test")
	if err := os.MkdirAll(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil { // without this, the ids of jails cannot access the directory
		t.Fatal(err)
	}
	os.Setenv(testHost, dir)
	h := hostIn(dir)
	t.Cleanup(func() {
		os.Unsetenv(testHost)
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
	return h
}

func hostIn(dir string) *host {
	sum := sha256.Sum256([]byte(dir))
	return &host{dir, "glasshouse-" + hex.EncodeToString(sum[:4])}
}

// daemon opens a backend as the daemon does.
func (h *host) daemon(runtime string) *oci.Backend {
	return oci.New(oci.Config{
		Runtime:      runtime,
		Path:         binary(runtime),
		CRIU:         binary("criu"),
		CgroupPrefix: h.prefix,
		RunDir:       filepath.Join(h.dir, "run"),
		Templates:    filepath.Join(h.dir, "templates"),
		Base:         filepath.Join(h.dir, "base"),
	})
}

// The contract of each runtime is a separate test, so that they run in parallel.
func TestContractRunc(t *testing.T)  { contract(t, "runc") }
func TestContractRunsc(t *testing.T) { contract(t, "runsc") }

func TestContractCrun(t *testing.T) {
	backendtest.Repeats(t)
	contract(t, "crun")
}

func contract(t *testing.T, runtime string) {
	h := newHost(t)
	open := func(*testing.T) jail.Backend { return h.daemon(runtime) }
	backendtest.Run(t, open, backendtest.Options{Runtime: runtime, Differs: differs[runtime], Without: repeated(runtime)})
}

// repeated lists the clauses that are skipped for a runtime because they take long and are
// checked with another one: CRIU restores jails of runc and crun with the same code. For
// gVisor one object of each kind is checked. With -short, other tests check snapshots and
// limits with gVisor.
func repeated(runtime string) []string {
	if backendtest.Thorough {
		return nil
	}
	without := map[string][]string{
		"runc": below("Checkpoint/Restored", "CreatedJailAnswers", "WritesLandInTheUpper", "Workspace", "Mounts", "KillLeavesNoProcess",
			"OpenFindsTheJailAgain", "CleanAfterEveryDeath", "LimitsChange", "StoppedJailStartsAgain", "MountShowsAStoppedJail",
			"Limits", "StatsArePlausible", "TwoJailsStayApart"),
		"crun": {"CleanInTheMiddleOfCreate", "CleanAfterEveryDeath", "StatsArePlausible", "TwentyAtOnce", "Checkpoint"},
		"runsc": append(below("Checkpoint", "Restored", "HelpersDie", "ProcessesDie", "FailedDump", "FailedRestore", "CleanInTheMiddleOfRestore",
			"SeveralFromOne", "CopyOfACopy", "CopyLayer", "SealLayerAtRest"),
			append(below("Checkpoint/Keeps", "identity", "mounts", "threads", "zombie", "stopped", "session", "pidfd", "locks", "fifo",
				"inotify", "sleep", "unix", "unix-paths", "shared", "sysv", "listener", "loopback", "udp", "netlink", "identity-of-a-user",
				"in-mounts", "memfd", "files-in-memory"),
				"CleanInTheMiddleOfCreate", "CleanAfterEveryDeath", "TwentyAtOnce")...),
	}
	if runtime == "runsc" && testing.Short() {
		return []string{"Checkpoint", "Limits", "KillLeavesNoProcess", "CleanInTheMiddleOfCreate", "CleanAfterEveryDeath", "TwentyAtOnce"}
	}
	return without[runtime]
}

// below returns the names of the subclauses of a clause.
func below(clause string, names ...string) []string {
	for i, name := range names {
		names[i] = clause + "/" + name
	}
	return names
}

// differs lists where the runtimes do not satisfy the contract, with the reasons.
var differs = map[string]map[string]string{
	"runsc": {
		"Inside/own-devices":                "gVisor shows a /dev/fuse, of its own kernel, not of the host's",
		"Attacks/open-devices":              "the same /dev/fuse can be opened; mounting takes a capability that the jail lacks",
		"Inside/no-descriptors-of-the-host": "in gVisor anyone may look at init's descriptors, among them one of the jail's own root",
		"Attacks/nice":                      "priorities in gVisor are among the jail's own processes",
		"Attacks/oom-score":                 "and so are scores",
		"Inside/no-new-privileges":          "gVisor's /proc/PID/status does not have the line; setuid programs are tried in Attacks",
		"Limits/memory-bomb":                "the jail's memory is that of gVisor's kernel: at the limit the host ends it, and the jail with it",
		"Attacks/write-kernel-settings":     "gVisor has a /proc/sys of its own that may be written; the host does not notice",
		"Attacks/processes-of-the-host":     "in gVisor root may kill its own init, which ends the jail and nothing else",
		"Attacks/signal-init":               "SIGKILL is among the signals: see the line above",

		"Checkpoint/ProcessesDie":                "processes of gVisor are none of the host's",
		"Checkpoint/Keeps/deleted":               "gVisor has no O_TMPFILE",
		"Checkpoint/Keeps/wiped":                 "gVisor has no MADV_WIPEONFORK",
		"Checkpoint/Keeps/epoll":                 "gVisor has no F_SETSIG, before a snapshot as after it",
		"Checkpoint/CopyLayer/a-named-pipe":      "a named pipe in gVisor is its kernel's, and goes with it; snapshots of a running jail have it",
		"Checkpoint/KeepsOrRefuses/traced":       "a jail of gVisor with a debugger in it may not answer any more after a snapshot, and from outside nobody sees that there is one",
		"Checkpoint/FailedDump/disk-full-at-16m": "gVisor keeps a file open that it could not fill; it is emptied, and closed at the latest when the jail ends",
	},
}
