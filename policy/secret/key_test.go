package secret_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"glasshouse/fault"
	"glasshouse/policy/secret"
)

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// openManager opens a Manager over m.
func openManager(t *testing.T, m *memoryStore, key string, passphrase string) (*secret.Manager, error) {
	t.Helper()
	k := secret.NewManager(secret.Config{Store: m, Recorder: &testManager{}, KeyFile: key, Passphrase: []byte(passphrase)})
	err := k.Open(t.Context())
	t.Cleanup(func() { k.Close() })
	return k, err
}

func valueOf(t *testing.T, k *secret.Manager, name string) string {
	t.Helper()
	v, err := k.Resolve(t.Context(), secret.Scope{Run: "r"}, name, secret.Use{Delivery: secret.File})
	if err != nil {
		return err.Error()
	}
	defer v.Zero()
	return string(v.Bytes())
}

// newStoreWithSecrets returns a store with three secrets and the key file that encrypts them.
func newStoreWithSecrets(t *testing.T, passphrase string) (*memoryStore, string) {
	t.Helper()
	m, key := newMemoryStore(), filepath.Join(t.TempDir(), "secrets.key")
	k, err := openManager(t, m, key, passphrase)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"A", "B", "C"} {
		err := k.Put(t.Context(), name, []byte("value of "+name), "")
		if err == nil {
			_, err = k.Grant(t.Context(), secret.Grant{Secret: name, To: secret.Scope{Run: "r"}, Delivery: secret.File})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return m, key
}

func checkValues(t *testing.T, k *secret.Manager) {
	t.Helper()
	for _, name := range []string{"A", "B", "C"} {
		if got := valueOf(t, k, name); got != "value of "+name {
			t.Errorf("value of %s = %q, want %q", name, got, "value of "+name)
		}
	}
}

func countKeys(t *testing.T, file string) int {
	t.Helper()
	return strings.Count(read(t, file), "AGE-SECRET-KEY-1")
}

func TestRotate(t *testing.T) {
	m, key := newStoreWithSecrets(t, "")
	before, sealed := read(t, key), m.secrets["A"].Sealed
	k, err := openManager(t, m, key, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Rotate(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	checkValues(t, k)
	if read(t, key) == before || m.secrets["A"].Sealed == sealed || countKeys(t, key) != 1 {
		t.Error("the key or the sealed values did not change")
	}
	k, err = openManager(t, m, key, "")
	if err != nil {
		t.Fatal(err)
	}
	checkValues(t, k)
	// The old key no longer decrypts the values.
	if err := os.WriteFile(key, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err = openManager(t, m, key, "")
	if err != nil {
		t.Fatal(err)
	}
	if got := valueOf(t, k, "A"); strings.Contains(got, "value of") {
		t.Errorf("value with the old key = %q, want an error", got)
	}
}

func TestOpenFinishesAnInterruptedRotation(t *testing.T) {
	for _, passphrase := range []string{"", "open sesame"} {
		// Interrupted before values are encrypted with the new key, which is in the file.
		m, key := newStoreWithSecrets(t, passphrase)
		k, err := openManager(t, m, key, passphrase)
		if err != nil {
			t.Fatal(err)
		}
		m.fail(errors.New("killed"))
		if err := k.Rotate(t.Context(), ""); err == nil {
			t.Fatal("Rotate with a failing database: got no error")
		}
		m.fail(nil)
		checkValues(t, k) // the running Manager continues to work
		if err := k.Put(t.Context(), "B", []byte("value of B"), ""); err != nil {
			t.Fatal(err)
		}
		both := read(t, key)
		k, err = openManager(t, m, key, passphrase)
		if err != nil {
			t.Fatal(err)
		}
		checkValues(t, k)

		// Interrupted after all values are encrypted with the new key, with the old one in the
		// file.
		if err := os.WriteFile(key, []byte(both), 0o600); err != nil {
			t.Fatal(err)
		}
		k, err = openManager(t, m, key, passphrase)
		if err != nil {
			t.Fatal(err)
		}
		checkValues(t, k)
		if passphrase == "" && countKeys(t, key) != 1 {
			t.Error("the old key was not removed from the file")
		}
	}
}

func TestRotateWithAnUnwritableKeyFile(t *testing.T) {
	m, key := newStoreWithSecrets(t, "")
	k, err := openManager(t, m, key, "")
	if err != nil {
		t.Fatal(err)
	}
	before := read(t, key)
	if err := os.Rename(filepath.Dir(key), filepath.Dir(key)+".away"); err != nil {
		t.Fatal(err)
	}
	err = k.Rotate(t.Context(), "")
	if err := os.Rename(filepath.Dir(key)+".away", filepath.Dir(key)); err != nil {
		t.Fatal(err)
	}
	if err == nil || read(t, key) != before {
		t.Errorf("Rotate = %v, want an error and an unchanged key file", err)
	}
	checkValues(t, k)
	k, err = openManager(t, m, key, "")
	if err != nil {
		t.Fatal(err)
	}
	checkValues(t, k)
}

func TestPassphraseProtectsTheKey(t *testing.T) {
	m, key := newStoreWithSecrets(t, "")
	k, err := openManager(t, m, key, "open sesame") // encrypts the key file
	if err != nil {
		t.Fatal(err)
	}
	checkValues(t, k)
	if countKeys(t, key) != 0 || !strings.HasPrefix(read(t, key), "age-encryption.org/v1\n-> scrypt ") {
		t.Errorf("the key file is not encrypted: %.60q", read(t, key))
	}
	k, err = openManager(t, m, key, "open sesame")
	if err != nil {
		t.Fatal(err)
	}
	checkValues(t, k)
	for _, wrong := range []string{"", "open says me"} {
		if _, err := openManager(t, m, key, wrong); !errors.Is(err, fault.Denied) || wrong != "" && strings.Contains(err.Error(), wrong) {
			t.Errorf("Open with passphrase %q = %v, want %v", wrong, err, fault.Denied)
		}
	}
	if err := k.Rotate(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if countKeys(t, key) != 0 {
		t.Error("the key file is not encrypted after Rotate")
	}
	k, err = openManager(t, m, key, "open sesame")
	if err != nil {
		t.Fatal(err)
	}
	checkValues(t, k)
}

func TestOpenRefusesAnInsecureOrMissingKey(t *testing.T) {
	m, key := newStoreWithSecrets(t, "")
	if err := os.Chmod(key, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := openManager(t, m, key, ""); !errors.Is(err, fault.Denied) {
		t.Errorf("Open of a key readable by others = %v, want %v", err, fault.Denied)
	}
	good := read(t, key)
	if err := os.Rename(key, key+".real"); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(key+".real", 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openManager(t, m, key, ""); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Open without the key = %v, want %v", err, fault.Unavailable)
	}
	if _, err := os.Stat(key); err == nil {
		t.Error("a new key file was created")
	}
	if err := os.Symlink(key+".real", key); err != nil {
		t.Fatal(err)
	}
	if _, err := openManager(t, m, key, ""); err == nil {
		t.Error("Open of a symbolic link: got no error")
	}
	os.Remove(key)
	for _, bad := range []string{"", "nonsense", "age-encryption.org/v1\n", good[:len(good)-5], strings.ToLower(good)} {
		if err := os.WriteFile(key, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openManager(t, m, key, ""); err == nil || strings.Contains(err.Error(), "AGE-SECRET") {
			t.Errorf("Open of a file with %.20q = %v, want an error without the key", bad, err)
		}
	}
	if _, err := openManager(t, newMemoryStore(), filepath.Join(t.TempDir(), "no/such/dir/key"), ""); err == nil {
		t.Error("Open without the directory: got no error")
	}
}

func TestSealedValueIsBoundToItsName(t *testing.T) {
	m, key := newStoreWithSecrets(t, "")
	a, b := m.secrets["A"], m.secrets["B"]
	a.Sealed, b.Sealed = b.Sealed, a.Sealed
	m.secrets["A"], m.secrets["B"] = a, b
	c := m.secrets["C"]
	c.Sealed = c.Sealed[:len(c.Sealed)-8]
	m.secrets["C"] = c
	k, err := openManager(t, m, key, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"A", "B", "C"} {
		if got := valueOf(t, k, name); !strings.Contains(got, "unavailable") || strings.Contains(got, "value of") {
			t.Errorf("value of %s = %q, want an error", name, got)
		}
	}
}

func TestReadPassphrase(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p")
	if err := os.WriteFile(file, []byte("open sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(w, "open sesame")
	w.Close()
	t.Setenv("GLASSHOUSE_TEST_PASSPHRASE", "open sesame")
	for _, from := range []string{"file:" + file, fmt.Sprintf("fd:%d", dup(t, r)), "env:GLASSHOUSE_TEST_PASSPHRASE"} {
		if b, err := secret.ReadPassphrase(from); err != nil || string(b) != "open sesame" {
			t.Errorf("ReadPassphrase(%s) = %q, %v", from, b, err)
		}
	}
	if v, found := os.LookupEnv("GLASSHOUSE_TEST_PASSPHRASE"); found {
		t.Errorf("the variable is still set: %q", v)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{"", "open sesame", "fd:x", "fd:-1", "file:" + file, "file:/nowhere", "env:GLASSHOUSE_TEST_PASSPHRASE", "pass:open sesame"} {
		if b, err := secret.ReadPassphrase(from); err == nil || strings.Contains(err.Error(), "sesame") {
			t.Errorf("ReadPassphrase(%q) = %q, %v; want an error without the passphrase", from, b, err)
		}
	}
}
