package test_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/jail/backend/backendtest"
)

// setupKernel returns the directory in which setup puts a kernel for virtual machines, next to that of
// its programs, or "".
func setupKernel() string {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		kernel := filepath.Join(dir, "../kernel")
		if _, err := os.Stat(kernel); err == nil {
			return kernel
		}
	}
	return ""
}

// TestDoctorTriesVirtualMachines takes jails in virtual machines through the whole product, while a
// daemon runs.
func TestDoctorTriesVirtualMachines(t *testing.T) {
	h := open(t, fmt.Sprintf("microvm: {emulate: true, kernel: %q}\n", setupKernel()))
	out, stderr, code := h.glasshouse(h.data, "doctor", "--microvm", "--json")
	var probes []wire.Probe
	if err := json.Unmarshal([]byte(out), &probes); err != nil {
		t.Fatalf("%v\n%s%s", err, out, stderr)
	}
	if len(probes) == 1 && strings.Contains(probes[0].Reason, "unsupported") && code == 1 {
		t.Skip(probes[0].Reason)
	}
	var got []string
	for _, p := range probes {
		got = append(got, p.Name+" "+p.Status+p.Reason)
	}
	want := []string{"boot ok", "start from a template ok", "snapshot ok", "two branches ok", "comparison ok", "rewind ok"}
	if !slices.Equal(got, want) || code != 0 {
		t.Errorf("steps = %q, exit code %d, want %q and 0\n%s", got, code, want, stderr)
	}
	if left, err := os.ReadDir(filepath.Join(h.data, "doctor")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left in the directory of the attempt: %v, %v", left, err)
	}
}

// TestVirtualMachine takes a jail in a virtual machine through its life, with snapshots and killed
// daemons.
func TestVirtualMachine(t *testing.T) {
	if !backendtest.Thorough {
		t.Skip("boots virtual machines with an emulated processor, which needs an idle one: set GLASSHOUSE_TEST=all")
	}
	h := open(t, fmt.Sprintf("microvm: {emulate: true, kernel: %q}\n", setupKernel()))
	made, err := h.CreateJail(t.Context(), wire.CreateJail{Backend: "microvm", Name: "vm", Limits: wire.Limits{MemoryMB: 256, DiskMB: 64}, Start: true})
	if errors.Is(err, fault.Unsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	j := made.ID
	h.says("jail", "exec", "-d", string(j), "--", "sh", "-c", counter)
	h.waitCount(j, 0)
	h.sh(j, "echo one > /root/file")
	s, err := h.TakeSnapshot(t.Context(), j, wire.TakeSnapshot{Name: "clean"})
	if err != nil {
		t.Fatal(err)
	}
	at := h.waitCount(j, 0)
	h.sh(j, "echo two > /root/file")

	h.kill()
	h.start() // the machine has run on, and the snapshot is on disk
	at = h.waitCount(j, at)
	for _, branch := range jails(h.says("branch", string(s.ID), "-n", "2")) {
		if got, want := h.sh(branch, "cat /root/file /etc/hostname"), "one\n"+string(branch); got != want {
			t.Errorf("file and host name of a branch = %q, want %q", got, want)
		}
		h.waitCount(branch, h.count(branch))
	}
	h.says("rewind", string(j), "clean")
	if got := h.sh(j, "cat /root/file"); got != "one" {
		t.Errorf("file after the rewind = %q, want one", got)
	}
	if n := h.count(j); n >= at {
		t.Errorf("the count after the rewind is %d, want less than %d, its value before", n, at)
	}

	h.says("snapshot", "create", string(j), "--stop", "--name", "stopped")
	if _, err := h.StartJail(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	if got := h.sh(j, "cat /root/file"); got != "one" {
		t.Errorf("file after a stop with a snapshot = %q, want one", got)
	}
	h.says("rewind", string(j), "stopped")
	h.waitCount(j, h.count(j))
}
