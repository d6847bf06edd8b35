package oci

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"glasshouse/jail"
)

// specOf returns the spec of an ordinary jail with a mount.
func specOf(t *testing.T, runtime string) *specs.Spec {
	t.Helper()
	p := jail.Plan{
		ID: "j-abcdefghijkm", Dir: "/data/jails/j-abcdefghijkm", Hostname: "lab",
		IDs: jail.IDRange{First: 1 << 20, Count: 65536}, Limits: jail.DefaultLimits,
	}
	binds := []bind{{source: "/data/x", target: "/mnt/in"}, {source: "/data/y", target: "/mnt/out", write: true}}
	return newSpec(p, kinds[runtime], layout{p.Dir}, "/run/netns/j-abcdefghijkm", "/glasshouse-0/j-abcdefghijkm", binds)
}

func forEachRuntime(t *testing.T, f func(t *testing.T, runtime string, s *specs.Spec)) {
	for name := range kinds {
		t.Run(name, func(t *testing.T) { f(t, name, specOf(t, name)) })
	}
}

func TestSpecNamespaces(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, _ string, s *specs.Spec) {
		got := map[specs.LinuxNamespaceType]string{}
		for _, n := range s.Linux.Namespaces {
			got[n.Type] = n.Path
		}
		want := map[specs.LinuxNamespaceType]string{
			specs.UserNamespace: "", specs.PIDNamespace: "", specs.MountNamespace: "", specs.UTSNamespace: "",
			specs.IPCNamespace: "", specs.CgroupNamespace: "", specs.NetworkNamespace: "/run/netns/j-abcdefghijkm",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("namespaces (-want +got):\n%s", diff)
		}
		ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 1 << 20, Size: 65536}}
		if diff := cmp.Diff([][]specs.LinuxIDMapping{ids, ids}, [][]specs.LinuxIDMapping{s.Linux.UIDMappings, s.Linux.GIDMappings}); diff != "" {
			t.Errorf("id maps (-want +got):\n%s", diff)
		}
	})
}

func TestSpecCapabilities(t *testing.T) {
	want := []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_BIND_SERVICE", "CAP_SETGID", "CAP_SETUID",
	}
	forEachRuntime(t, func(t *testing.T, runtime string, s *specs.Spec) {
		want := want
		if runtime != "runsc" { // init has these at its start and removes them from its commands
			want = append(slices.Clone(want), "CAP_WAKE_ALARM", "CAP_SETPCAP")
		}
		c := s.Process.Capabilities
		for set, got := range map[string][]string{"bounding": c.Bounding, "effective": c.Effective, "permitted": c.Permitted} {
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s set (-want +got):\n%s", set, diff)
			}
		}
		if len(c.Inheritable)+len(c.Ambient) > 0 {
			t.Errorf("inheritable and ambient capabilities = %v, %v, want none", c.Inheritable, c.Ambient)
		}
		if !s.Process.NoNewPrivileges {
			t.Error("set-user-id programs would give privileges")
		}
	})
}

func TestSpecSeccomp(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, runtime string, s *specs.Spec) {
		p := s.Linux.Seccomp
		if p == nil || p.DefaultAction != specs.ActErrno || p.DefaultErrnoRet == nil || *p.DefaultErrnoRet != 1 {
			t.Fatalf("the profile's default is not EPERM: %+v", p)
		}
		for _, rule := range p.Syscalls {
			for _, never := range []string{"mount", "bpf", "kexec_load", "keyctl", "unshare", "io_uring_setup", "userfaultfd", "perf_event_open"} {
				if rule.Action == specs.ActAllow && slices.Contains(rule.Names, never) {
					t.Errorf("%s is allowed, want denied", never)
				}
			}
			if runtime == "runsc" && rule.Action == specs.ActErrno && (rule.ErrnoRet == nil || *rule.ErrnoRet != 1) {
				t.Errorf("%v: gVisor would answer EPERM instead of the errno in %+v", rule.Names, rule)
			}
		}
	})
}

// Staged mounts keep the flags of the host's mounts. A remount in a user namespace could not,
// so runc and crun must not be asked for one.
func TestSpecMountFlags(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, runtime string, s *specs.Spec) {
		seen := 0
		for _, m := range s.Mounts {
			if m.Type != "bind" {
				if slices.Contains(m.Options, "suid") || !slices.Contains(m.Options, "nosuid") {
					t.Errorf("%s is not nosuid: %v", m.Destination, m.Options)
				}
				continue
			}
			seen++
			if runtime != "runsc" && !slices.Equal(m.Options, []string{"bind"}) {
				t.Errorf("%s would be remounted with %v", m.Destination, m.Options)
			}
			if runtime == "runsc" && m.Destination == "/mnt/in" && !slices.Contains(m.Options, "ro") {
				t.Errorf("options of a read-only mount = %v, want ro", m.Options)
			}
		}
		if seen < 4 {
			t.Errorf("got %d binds, want /sys, the control directory and two of the caller", seen)
		}
	})
}

func TestSpecMaskedPaths(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, _ string, s *specs.Spec) {
		for _, path := range []string{"/proc/keys", "/proc/interrupts", "/sys/firmware", "/sys/kernel/debug"} {
			if !slices.Contains(s.Linux.MaskedPaths, path) {
				t.Errorf("%s is not masked", path)
			}
		}
		for _, path := range []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"} {
			if !slices.Contains(s.Linux.ReadonlyPaths, path) {
				t.Errorf("%s is not read-only", path)
			}
		}
	})
}

// The runtime is started without a shell and reads everything from the bundle. The only
// caller-provided text in it is the host name, which is encoded as JSON.
func TestSpecEscapesHostname(t *testing.T) {
	s := specOf(t, "runc")
	s.Hostname = `"},"root":{"path":"/"`
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var back specs.Spec
	if err := json.Unmarshal(b, &back); err != nil || back.Root.Path != s.Root.Path || back.Hostname != s.Hostname {
		t.Errorf("after a round trip: root %q, host name %q, %v", back.Root.Path, back.Hostname, err)
	}
	if strings.Join(s.Process.Args, " ") != "/.glasshouse/init" {
		t.Errorf("process 1 is %q", s.Process.Args)
	}
}
