package microvm_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
)

// A secret is that of a test.
type secret struct{ value string }

func (secret) Name() string    { return "KEY" }
func (s secret) Bytes() []byte { return []byte(s.value) }
func (secret) Zero()           {}

// TestSecretsAreNotInSnapshots checks that no memory of a machine contains a secret after it is hidden,
// and that a branch gets its own.
func TestSecretsAreNotInSnapshots(t *testing.T) {
	h := newHost(t)
	b := h.ready(t)
	p := h.plan(t, b)
	i, err := b.Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	show := func(i jail.Instance, value string) {
		t.Helper()
		if err := i.(jail.SecretHolder).ShowSecrets(t.Context(), []jail.SecretFile{{Secret: secret{value}, UID: 33, GID: 34}}); err != nil {
			t.Fatalf("ShowSecrets: %v", err)
		}
		// Its output would be in the memory of the jail's init.
		want := fmt.Sprintf("%x  /run/secrets/KEY\n400 33 34\n", sha256.Sum256([]byte(value)))
		if got := output(t, i, "sh", "-c", "sha256sum /run/secrets/KEY; stat -c '%a %u %g' /run/secrets/KEY"); got != want {
			t.Errorf("in the jail the secret is %q, want %q", got, want)
		}
	}
	holder := i.(jail.SecretHolder)
	values := []string{strings.Repeat("canary-"+string(id.NewExec()), 200), strings.Repeat("canary-"+string(id.NewExec()), 2)}
	for _, value := range values {
		show(i, value)
	}
	output(t, i, "sh", "-c", "echo web:x:33:34::/:/bin/sh >> /etc/passwd")
	if uid, gid, err := i.(jail.AccountHolder).Account(t.Context(), "web"); uid != 33 || gid != 34 || err != nil {
		t.Errorf("Account = %d, %d, %v; want the ids of the jail's user", uid, gid, err)
	}
	if _, _, err := i.(jail.AccountHolder).Account(t.Context(), "absent"); !errors.Is(err, fault.Invalid) {
		t.Errorf("Account = %v, want invalid", err)
	}

	begin(t, i, "exec 3< /run/secrets/KEY; echo > /tmp/open; until test -e /tmp/close; do sleep 0.05; done; exec 3<&-; echo > /tmp/closed")
	await(t, i, "test -e /tmp/open")
	freeze(t, i)
	if err := holder.HideSecrets(t.Context()); !errors.Is(err, fault.Conflict) || fault.RemedyOf(err) == "" {
		t.Errorf("HideSecrets with an open secret = %v, want a conflict with a remedy", err)
	}
	thaw(t, i)
	output(t, i, "touch", "/tmp/close")
	await(t, i, "test -e /tmp/closed")

	freeze(t, i)
	if err := holder.HideSecrets(t.Context()); err != nil {
		t.Fatalf("HideSecrets: %v", err)
	}
	dir := t.TempDir()
	if err := b.Dump(t.Context(), p, i, dir); err != nil {
		t.Fatal(err)
	}
	layer := filepath.Join(dir, "layer.img")
	if err := copyLayer(t.Context(), b, p, layer); err != nil {
		t.Fatal(err)
	}
	for _, value := range values {
		part := value[:len(value)/2]
		for as, text := range map[string]string{"": part, ", as base64,": base64.StdEncoding.EncodeToString([]byte(value))[:32]} {
			if in := filesWith(t, dir, text); len(in) > 0 {
				t.Errorf("a secret is%s in the files of the snapshot %q", as, in)
			}
		}
	}
	if len(filesWith(t, dir, "/tmp/closed")) == 0 { // in the memory of the shell
		t.Error("the search in the snapshot finds nothing")
	}

	q := h.plan(t, b)
	q.Sealed = []string{layer}
	branch, err := h.daemon().Restore(t.Context(), q, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer branch.Close()
	if err := branch.(jail.SecretHolder).ShowSecrets(t.Context(), []jail.SecretFile{{Secret: secret{"of the branch"}}}); err != nil {
		t.Fatalf("ShowSecrets in a branch that does not run: %v", err)
	}
	thaw(t, branch)
	if got := output(t, branch, "cat", "/run/secrets/KEY"); got != "of the branch" {
		t.Errorf("the secret of the branch is %q", got)
	}
	thaw(t, i)
	if got := output(t, i, "ls", "/run/secrets"); got != "" {
		t.Errorf("the hidden secrets are %q", got)
	}
}

// filesWith returns the names of the files in a directory that contain a text.
func filesWith(t *testing.T, dir, text string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(data, []byte(text)) {
			names = append(names, e.Name())
		}
	}
	return names
}
