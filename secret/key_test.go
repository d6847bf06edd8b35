package secret_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"glasshouse/fault"
	"glasshouse/secret"
)

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// opened is a Keeper over a store in memory.
func opened(t *testing.T, m *memory, key string, passphrase string) (*secret.Keeper, error) {
	t.Helper()
	k := secret.NewKeeper(secret.Config{Store: m, Recorder: &kept{}, KeyFile: key, Passphrase: []byte(passphrase)})
	err := k.Open(t.Context())
	t.Cleanup(func() { k.Close() })
	return k, err
}

func valueOf(t *testing.T, k *secret.Keeper, name string) string {
	t.Helper()
	v, err := k.Resolve(t.Context(), secret.Scope{Run: "r"}, name, secret.Use{Delivery: secret.File})
	if err != nil {
		return err.Error()
	}
	defer v.Zero()
	return string(v.Bytes())
}

// stocked is a store with some secrets, sealed with the key in the file returned.
func stocked(t *testing.T, passphrase string) (*memory, string) {
	t.Helper()
	m, key := newMemory(), filepath.Join(t.TempDir(), "secrets.key")
	k, err := opened(t, m, key, passphrase)
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

func allThere(t *testing.T, k *secret.Keeper) {
	t.Helper()
	for _, name := range []string{"A", "B", "C"} {
		if got := valueOf(t, k, name); got != "value of "+name {
			t.Errorf("%s is %q", name, got)
		}
	}
}

func keysIn(t *testing.T, file string) int {
	t.Helper()
	return strings.Count(read(t, file), "AGE-SECRET-KEY-1")
}

func TestTheKeyIsChanged(t *testing.T) {
	m, key := stocked(t, "")
	before, sealed := read(t, key), m.secrets["A"].Sealed
	k, err := opened(t, m, key, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Rotate(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	allThere(t, k)
	if read(t, key) == before || m.secrets["A"].Sealed == sealed || keysIn(t, key) != 1 {
		t.Error("the key, or what is sealed with it, is as it was")
	}
	k, err = opened(t, m, key, "")
	if err != nil {
		t.Fatal(err)
	}
	allThere(t, k)
	// The key before opens nothing any more.
	if err := os.WriteFile(key, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err = opened(t, m, key, "")
	if err != nil {
		t.Fatal(err)
	}
	if got := valueOf(t, k, "A"); strings.Contains(got, "value of") {
		t.Errorf("with the old key it is %q", got)
	}
}

func TestAChangeOfTheKeyThatIsInterruptedIsFinished(t *testing.T) {
	for _, passphrase := range []string{"", "open sesame"} {
		// Before anything is sealed with the new key, though it is in the file.
		m, key := stocked(t, passphrase)
		k, err := opened(t, m, key, passphrase)
		if err != nil {
			t.Fatal(err)
		}
		m.fail(errors.New("killed"))
		if err := k.Rotate(t.Context(), ""); err == nil {
			t.Fatal("the database failed, and the change did not")
		}
		m.fail(nil)
		allThere(t, k) // who is not killed goes on
		if err := k.Put(t.Context(), "B", []byte("value of B"), ""); err != nil {
			t.Fatal(err)
		}
		both := read(t, key)
		k, err = opened(t, m, key, passphrase)
		if err != nil {
			t.Fatal(err)
		}
		allThere(t, k)

		// After everything is, and the old key still is in the file.
		if err := os.WriteFile(key, []byte(both), 0o600); err != nil {
			t.Fatal(err)
		}
		k, err = opened(t, m, key, passphrase)
		if err != nil {
			t.Fatal(err)
		}
		allThere(t, k)
		if passphrase == "" && keysIn(t, key) != 1 {
			t.Error("the old key is still in the file")
		}
	}
}

func TestTheKeyFileCannotBeWritten(t *testing.T) {
	m, key := stocked(t, "")
	k, err := opened(t, m, key, "")
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
		t.Errorf("it was changed, or %v", err)
	}
	allThere(t, k)
	k, err = opened(t, m, key, "")
	if err != nil {
		t.Fatal(err)
	}
	allThere(t, k)
}

func TestAPassphraseProtectsTheKey(t *testing.T) {
	m, key := stocked(t, "")
	k, err := opened(t, m, key, "open sesame") // from now on
	if err != nil {
		t.Fatal(err)
	}
	allThere(t, k)
	if keysIn(t, key) != 0 || !strings.HasPrefix(read(t, key), "age-encryption.org/v1\n-> scrypt ") {
		t.Errorf("the key is not protected: %.60q", read(t, key))
	}
	k, err = opened(t, m, key, "open sesame")
	if err != nil {
		t.Fatal(err)
	}
	allThere(t, k)
	for _, wrong := range []string{"", "open says me"} {
		if _, err := opened(t, m, key, wrong); !errors.Is(err, fault.Denied) || wrong != "" && strings.Contains(err.Error(), wrong) {
			t.Errorf("with %q: %v", wrong, err)
		}
	}
	if err := k.Rotate(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if keysIn(t, key) != 0 {
		t.Error("after a change the key is not protected any more")
	}
	k, err = opened(t, m, key, "open sesame")
	if err != nil {
		t.Fatal(err)
	}
	allThere(t, k)
}

func TestAKeyThatIsOpenToOthersOrGoneIsRefused(t *testing.T) {
	m, key := stocked(t, "")
	if err := os.Chmod(key, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := opened(t, m, key, ""); !errors.Is(err, fault.Denied) {
		t.Errorf("others may read it: %v", err)
	}
	good := read(t, key)
	if err := os.Rename(key, key+".real"); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(key+".real", 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := opened(t, m, key, ""); !errors.Is(err, fault.Unavailable) {
		t.Errorf("it is gone: %v", err)
	}
	if _, err := os.Stat(key); err == nil {
		t.Error("another was made in its place")
	}
	if err := os.Symlink(key+".real", key); err != nil {
		t.Fatal(err)
	}
	if _, err := opened(t, m, key, ""); err == nil {
		t.Error("it is a link")
	}
	os.Remove(key)
	for _, bad := range []string{"", "nonsense", "age-encryption.org/v1\n", good[:len(good)-5], strings.ToLower(good)} {
		if err := os.WriteFile(key, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := opened(t, m, key, ""); err == nil || strings.Contains(err.Error(), "AGE-SECRET") {
			t.Errorf("a file with %.20q: %v", bad, err)
		}
	}
	if _, err := opened(t, newMemory(), filepath.Join(t.TempDir(), "no/such/dir/key"), ""); err == nil {
		t.Error("no directory for it")
	}
}

func TestWhatIsSealedCannotBeGivenAnotherName(t *testing.T) {
	m, key := stocked(t, "")
	a, b := m.secrets["A"], m.secrets["B"]
	a.Sealed, b.Sealed = b.Sealed, a.Sealed
	m.secrets["A"], m.secrets["B"] = a, b
	c := m.secrets["C"]
	c.Sealed = c.Sealed[:len(c.Sealed)-8]
	m.secrets["C"] = c
	k, err := opened(t, m, key, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"A", "B", "C"} {
		if got := valueOf(t, k, name); !strings.Contains(got, "unavailable") || strings.Contains(got, "value of") {
			t.Errorf("%s is %q", name, got)
		}
	}
}

func TestAPassphraseComesByDescriptorFileOrVariable(t *testing.T) {
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
			t.Errorf("%s: %q, %v", from, b, err)
		}
	}
	if v, there := os.LookupEnv("GLASSHOUSE_TEST_PASSPHRASE"); there {
		t.Errorf("programs that are started inherit it: %q", v)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{"", "open sesame", "fd:x", "fd:-1", "file:" + file, "file:/nowhere", "env:GLASSHOUSE_TEST_PASSPHRASE", "pass:open sesame"} {
		if b, err := secret.ReadPassphrase(from); err == nil || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%q: %q, %v", from, b, err)
		}
	}
}
