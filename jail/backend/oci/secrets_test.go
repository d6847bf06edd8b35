package oci_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/backend/oci"
	"glasshouse/jail/init/control"
)

// A word is a secret in a test.
type word string

func (w word) Name() string  { return "WORD" }
func (w word) Bytes() []byte { return []byte(w) }
func (w word) Zero()         {}

// Dump must fail if the secrets of a jail were not hidden.
func TestDumpFailsWhileSecretsAreMounted(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, h *host, b *oci.Backend) {
		if runtimeOf(t) == "runsc" {
			return // has none
		}
		if err := b.CanCheckpoint(t.Context()); err != nil {
			t.Skip(err)
		}
		p := h.plan(t, b)
		inst, err := b.Create(t.Context(), p)
		must(t, err)
		defer inst.Close()
		holder := inst.(jail.SecretHolder)
		must(t, holder.ShowSecrets(t.Context(), []jail.SecretFile{{Secret: word("one")}}))
		must(t, b.Dumpable(t.Context(), p, inst))
		must(t, control.Dial(inst.Control()).Park(t.Context(), 20*time.Second))
		must(t, inst.Freeze(t.Context()))
		must(t, b.Stabilize(t.Context(), p, inst))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := b.Dump(ctx, p, inst, images(t, "first")); !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "secrets") {
			t.Errorf("Dump = %v, want a conflict", err)
		}
		must(t, holder.HideSecrets(t.Context()))
		if mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", inst.PID())); err != nil || strings.Contains(string(mounts), " /run/secrets ") {
			t.Errorf("the filesystem of secrets is still mounted after HideSecrets: %v", err)
		}
		must(t, b.Dumpable(t.Context(), p, inst))
		must(t, b.Dump(ctx, p, inst, images(t, "second")))
	})
}

// Secrets of a gVisor jail are in a mount on the host, which must survive the daemon and must
// not survive the jail.
func TestSecretsInGVisorJail(t *testing.T) {
	h := newHost(t)
	b := ready(t, h, "runsc")
	p := h.plan(t, b, func(p *jail.Plan) { p.SecretFiles = true })
	inst, err := b.Create(t.Context(), p)
	must(t, err)
	defer func() { inst.Close() }()
	sees := func(want string) {
		t.Helper()
		out, _, err := run(t.Context(), inst, "/bin/bash", "-c", "ls /run/secrets; cat /run/secrets/* 2>/dev/null")
		must(t, err)
		if out != want {
			t.Errorf("the jail sees %q, want %q", out, want)
		}
	}
	sees("")
	must(t, inst.(jail.SecretHolder).ShowSecrets(t.Context(), []jail.SecretFile{{Secret: word("one")}}))
	sees("WORD\none")

	must(t, inst.Close())
	next := h.daemon("runsc")
	inst, err = next.Open(t.Context(), p)
	must(t, err)
	sees("WORD\none")
	must(t, inst.(jail.SecretHolder).ShowSecrets(t.Context(), []jail.SecretFile{{Secret: word("two")}}))
	sees("WORD\ntwo")
	must(t, inst.(jail.SecretHolder).ShowSecrets(t.Context(), nil))
	sees("")

	must(t, inst.(jail.SecretHolder).ShowSecrets(t.Context(), []jail.SecretFile{{Secret: word("canary-of-the-volume")}}))
	if err := next.Dumpable(t.Context(), p, inst); !errors.Is(err, fault.Unsupported) || fault.RemedyOf(err) == "" {
		t.Errorf("Dumpable = %v, want fault.Unsupported and a remedy", err)
	}
	must(t, next.Clean(t.Context(), p))
	disk, err := os.ReadFile(filepath.Join(p.Dir, "disk.img"))
	must(t, err)
	if bytes.Contains(disk, []byte("canary-of-the-volume")) {
		t.Error("a secret is on the jail's disk")
	}
}

func images(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	must(t, os.Mkdir(dir, 0o700))
	return dir
}
