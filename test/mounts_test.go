package test_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
)

func TestMountsNeedConfiguration(t *testing.T) {
	allowed, other := shortTemp(t), shortTemp(t)
	for _, dir := range []string{filepath.Join(allowed, "sub"), filepath.Join(other, "sub")} {
		if err := os.Mkdir(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "f"), []byte("the host's\n"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(other, filepath.Join(allowed, "out")); err != nil {
		t.Fatal(err)
	}
	h := open(t, fmt.Sprintf("mounts: {allow: [%q]}\nworkspaces: {allow: [%q]}\n", allowed, allowed), "--listen", "127.0.0.1:0")
	ctx := t.Context()
	for _, backend := range []string{"oci", "bwrap"} {
		j := h.running(wire.CreateJail{Backend: backend, Mounts: []wire.Mount{
			{Source: filepath.Join(allowed, "sub"), Target: "/ro"},
			{Source: filepath.Join(allowed, "sub"), Target: "/rw", Write: true},
			{Source: filepath.Join(allowed, "sub/f"), Target: "/etc/one"},
		}})
		if got := h.sh(j.ID, "cat /ro/f /etc/one; (echo x > /ro/new) 2>/dev/null && echo wrote; echo "+backend+" > /rw/from && cat /ro/from"); got != "the host's\nthe host's\n"+backend {
			t.Errorf("%s: files in mounts: got %q", backend, got)
		}
		if got, _ := os.ReadFile(filepath.Join(allowed, "sub/from")); string(got) != backend+"\n" {
			t.Errorf("%s: file on the host: got %q", backend, got)
		}
		for source, kind := range map[string]fault.Kind{
			other: fault.Denied, "/": fault.Denied, "/etc": fault.Denied, h.data: fault.Denied,
			filepath.Join(allowed, "out"): fault.Denied, filepath.Join(allowed, "../etc"): "", allowed + "x": "",
			filepath.Join(allowed, "none"): fault.Invalid, "sub": fault.Invalid,
		} {
			_, err := h.CreateJail(ctx, wire.CreateJail{Backend: backend, Mounts: []wire.Mount{{Source: source, Target: "/m"}}})
			if got := fault.KindOf(err); err == nil || kind != "" && got != kind || fault.FieldOf(err) != "mounts[0].source" {
				t.Errorf("%s: mount of %s: got %v, field %q; want %s", backend, source, err, fault.FieldOf(err), kind)
			}
		}
		for _, target := range []string{"", "relative", "/", "/proc", "/proc/sys", "/sys/x", "/dev", "/.glasshouse", "/.glasshouse/x", "/a/../../b"} {
			_, err := h.CreateJail(ctx, wire.CreateJail{Backend: backend, Mounts: []wire.Mount{{Source: allowed, Target: target}}})
			if !errors.Is(err, fault.Invalid) {
				t.Errorf("%s: mount on %q: got %v, want invalid", backend, target, err)
			}
		}
	}

	// A remote client can read only allowed directories of the host, also through a
	// copy-on-write workspace.
	token, err := h.CreateToken(ctx, wire.CreateToken{Name: "far away", Role: "operator"})
	if err != nil {
		t.Fatal(err)
	}
	remote, err := client.New(client.Options{Addr: "http://" + h.tcpAddr(), Token: token.Token})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := remote.CreateJail(ctx, wire.CreateJail{Workspace: &wire.Workspace{Source: other}}); !errors.Is(err, fault.Denied) || fault.FieldOf(err) != "workspace.source" {
		t.Errorf("workspace of another directory: got %v, want denied", err)
	}
	if _, err := remote.CreateJail(ctx, wire.CreateJail{Workspace: &wire.Workspace{Source: filepath.Join(allowed, "out")}}); !errors.Is(err, fault.Denied) {
		t.Errorf("workspace through a symbolic link: got %v, want denied", err)
	}
	j, err := remote.CreateJail(ctx, wire.CreateJail{Workspace: &wire.Workspace{Source: filepath.Join(allowed, "sub"), Target: "/work/sub"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.StartJail(ctx, j.ID); err != nil {
		t.Fatal(err)
	}
	if got := h.sh(j.ID, "pwd; echo mine > f; cat f"); got != "/work/sub\nmine" {
		t.Errorf("file in the workspace: got %q", got)
	}
	if got, _ := os.ReadFile(filepath.Join(allowed, "sub/f")); string(got) != "the host's\n" {
		t.Errorf("the host's file changed to %q", got)
	}
}

func TestLimitsHaveDefaultsAndMaxima(t *testing.T) {
	h := open(t, "")
	j, err := h.CreateJail(t.Context(), wire.CreateJail{})
	if want := (wire.Limits{CPUShares: 256, MemoryMB: 512, DiskMB: 1024, MaxPIDs: 128}); err != nil || j.Limits != want || j.Network != "isolated" {
		t.Errorf("jail with defaults: got %+v, network %s, %v; want %+v", j.Limits, j.Network, err, want)
	}
	for field, l := range map[string]wire.Limits{
		"limits.cpu_shares": {CPUShares: 1025}, "limits.memory_mb": {MemoryMB: 8193}, "limits.disk_mb": {DiskMB: 16385}, "limits.max_pids": {MaxPIDs: 4097},
	} {
		_, err := h.CreateJail(t.Context(), wire.CreateJail{Limits: l})
		if !errors.Is(err, fault.Invalid) || fault.FieldOf(err) != field || !strings.Contains(err.Error(), "maximum of") {
			t.Errorf("%+v: %v, field %q; want invalid %s with the maximum", l, err, fault.FieldOf(err), field)
		}
	}
}

func TestNixRootfsNeedsNix(t *testing.T) {
	if _, err := exec.LookPath("nix"); err == nil {
		t.Skip("nix is installed and would build")
	}
	h := open(t, "")
	_, err := h.CreateJail(t.Context(), wire.CreateJail{Rootfs: wire.Rootfs{Nix: "base"}})
	if !errors.Is(err, fault.Unsupported) || !strings.Contains(fault.RemedyOf(err), "install") {
		t.Errorf("without nix: %v, remedy %q; want unsupported and an install command", err, fault.RemedyOf(err))
	}
	if _, err := h.CreateJail(t.Context(), wire.CreateJail{Rootfs: wire.Rootfs{Nix: "../evil"}}); !errors.Is(err, fault.Invalid) {
		t.Errorf("malformed profile: got %v, want invalid", err)
	}
}
