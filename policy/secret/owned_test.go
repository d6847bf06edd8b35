package secret_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"glasshouse/fault"
	"glasshouse/policy/secret"
)

func (k *testManager) addOwned(owner, name, value string) secret.OwnedSecret {
	k.t.Helper()
	o, err := k.AddOwned(k.t.Context(), secret.OwnedSecret{Owner: owner, Name: name, ID: "sec_" + owner + name}, []byte(value), owner)
	if err != nil {
		k.t.Fatal(err)
	}
	return o
}

// resolveOwned returns the value of an owned secret for a jail, or "-" if it is denied.
func (k *testManager) resolveOwned(owner, name string) string {
	k.t.Helper()
	v, err := k.ResolveOwned(k.t.Context(), secret.Scope{Jail: jail1}, owner, name, "api.example.com")
	if errors.Is(err, fault.Denied) {
		return "-"
	}
	if err != nil {
		k.t.Fatal(err)
	}
	defer v.Zero()
	return string(v.Bytes())
}

func TestOwnedSecretIsVisibleToItsOwnerOnly(t *testing.T) {
	k := newTestManager(t)
	k.put("key", "the daemon's")
	a, b := k.addOwned("t-a", "key", "a's "+canary), k.addOwned("t-b", "key", "b's")
	if a.Version != 1 || a.Created.IsZero() || a.Created != a.Updated {
		t.Errorf("Add = %+v", a)
	}
	for owner, want := range map[string]string{"t-a": "a's " + canary, "t-b": "b's", "t-c": "-", "": "-"} {
		if got := k.resolveOwned(owner, "key"); got != want {
			t.Errorf("value for owner %q = %q, want %q", owner, got, want)
		}
	}
	for _, name := range []string{"t-a:key", "key:", ":key", "KEY", ""} {
		if got := k.resolveOwned("t-b", name); got != "-" {
			t.Errorf("value of %q for t-b = %q, want it denied", name, got)
		}
	}
	// Resolve does not return owned secrets.
	for _, name := range []string{"key", "t-a:key", a.ID} {
		for _, u := range []secret.Use{{Delivery: secret.File}, {Delivery: secret.Inject, Host: "api.example.com"}} {
			if got := k.resolve(secret.Scope{Jail: jail1, Capability: "t-a", Session: "t-a", Run: "t-a"}, name, u); got != "-" {
				t.Errorf("Resolve(%s) as %s = %q, want it denied", name, u.Delivery, got)
			}
		}
	}
	if _, err := k.Grant(t.Context(), secret.Grant{Secret: "t-a:key", To: secret.Scope{Jail: jail1}, Delivery: secret.File}); !errors.Is(err, fault.Denied) {
		t.Errorf("Grant = %v, want %v", err, fault.Denied)
	}
	for _, put := range []error{k.Put(t.Context(), "t-a:key", []byte("x"), "me"), k.PutReference(t.Context(), "t-a:key", "env:X", "me")} {
		if !errors.Is(put, fault.Invalid) {
			t.Errorf("Put = %v, want %v", put, fault.Invalid)
		}
	}
	// An owner cannot refer to the secret of another owner.
	for _, ref := range []string{b.ID, "t-b:key", "none"} {
		_, find := k.FindOwned(t.Context(), "t-a", ref)
		_, renew := k.UpdateOwned(t.Context(), "t-a", ref, []byte("x"), nil, "t-a")
		for _, err := range []error{find, renew, k.DeleteOwned(t.Context(), "t-a", ref, "t-a")} {
			if !errors.Is(err, fault.NotFound) || strings.Contains(err.Error(), ref) {
				t.Errorf("reference %s: got %v, want %v", ref, err, fault.NotFound)
			}
		}
	}
	if got := k.Owned("t-a"); len(got) != 1 || got[0].ID != a.ID {
		t.Errorf("Owned(t-a) = %+v, want only %s", got, a.ID)
	}
	if got := k.Owned(""); got != nil {
		t.Errorf("Owned without an owner = %+v, want nil", got)
	}
	list := k.List()
	if got := fmt.Sprint(list[0].Name, list[0].Owner, list[1].Name, list[1].Owner); len(list) != 3 || got != "keyt-a:keyt-a" {
		t.Errorf("List = %+v", list)
	}
}

func TestOwnedSecretHasVersions(t *testing.T) {
	k := newTestManager(t)
	a := k.addOwned("t-a", "key", "one")
	more := map[string]string{"env": "test"}
	got, err := k.UpdateOwned(t.Context(), "t-a", "key", []byte("two"), more, "t-a")
	if err != nil || got.Version != 2 || got.ID != a.ID || got.Metadata["env"] != "test" || !got.Created.Equal(a.Created) || !got.Updated.After(a.Updated) {
		t.Errorf("Renew = %+v, %v", got, err)
	}
	more["env"], got.Metadata["env"] = "theirs", "theirs" // maps of arguments and results are copies
	got, err = k.UpdateOwned(t.Context(), "t-a", a.ID, []byte("three"), nil, "t-a")
	if err != nil || got.Version != 3 || got.Metadata["env"] != "test" {
		t.Errorf("Renew with nil metadata = %+v, %v", got, err)
	}
	for _, value := range []string{"", strings.Repeat("x", secret.MaxValue+1)} {
		if _, err := k.UpdateOwned(t.Context(), "t-a", "key", []byte(value), nil, "t-a"); err == nil {
			t.Errorf("Renew with %d bytes: got no error", len(value))
		}
	}
	if err := k.Rotate(t.Context(), "me"); err != nil {
		t.Fatal(err)
	}
	k.reopen()
	if got, err := k.FindOwned(t.Context(), "t-a", "key"); err != nil || got.Version != 3 || got.Metadata["env"] != "test" || k.resolveOwned("t-a", "key") != "three" {
		t.Errorf("FindOwned after Rotate and a restart = %+v, %v", got, err)
	}
	if got, err := k.UpdateOwned(t.Context(), "t-a", "key", []byte("four"), map[string]string{}, "t-a"); err != nil || len(got.Metadata) > 0 {
		t.Errorf("Renew with empty metadata = %+v, %v", got, err)
	}
	for _, o := range []secret.OwnedSecret{{Owner: "t-a", Name: "key", ID: "sec_other"}, {Owner: "t-a", Name: "other", ID: a.ID}} {
		if _, err := k.AddOwned(t.Context(), o, []byte("x"), "t-a"); !errors.Is(err, fault.Conflict) {
			t.Errorf("Add of the duplicate %+v = %v, want %v", o, err, fault.Conflict)
		}
	}
	for _, o := range []secret.OwnedSecret{{Owner: "t-a", ID: "sec_x"}, {Name: "n", ID: "sec_x"}, {Owner: "t-a", Name: "n"}, {Owner: "t-a", Name: "a:b", ID: "sec_x"}, {Owner: "t:a", Name: "b", ID: "sec_x"}, {Owner: "t-a", Name: "a\n", ID: "sec_x"}} {
		if _, err := k.AddOwned(t.Context(), o, []byte("x"), "t-a"); !errors.Is(err, fault.Invalid) {
			t.Errorf("Add(%+v) = %v, want %v", o, err, fault.Invalid)
		}
	}
	if err := k.DeleteOwned(t.Context(), "t-a", a.ID, "t-a"); err != nil {
		t.Fatal(err)
	}
	if got := k.resolveOwned("t-a", "key"); got != "-" {
		t.Errorf("value after Drop = %q, want it denied", got)
	}
	again := k.addOwned("t-a", "key", "second")
	if again.Version != 1 || k.resolveOwned("t-a", "key") != "second" {
		t.Errorf("Add after Drop = %+v, want version 1", again)
	}
	// An administrator can delete it as well.
	if err := k.Delete(t.Context(), "t-a:key", "admin"); err != nil || k.Owned("t-a") != nil {
		t.Errorf("Delete = %v; remaining secrets: %v", err, k.Owned("t-a"))
	}
}

func TestOwnedSecretUseIsRecorded(t *testing.T) {
	k := newTestManager(t)
	a := k.addOwned("t-a", "key", "one")
	k.resolveOwned("t-a", "key")
	k.resolveOwned("t-a", "none")
	if _, err := k.UpdateOwned(t.Context(), "t-a", "key", []byte("two"), nil, "t-a"); err != nil {
		t.Fatal(err)
	}
	if err := k.DeleteOwned(t.Context(), "t-a", a.ID, "t-a"); err != nil {
		t.Fatal(err)
	}
	k.expect("events", "stored t-a:key", "used t-a:key", "refused t-a:none", "stored t-a:key", "deleted t-a:key")
	k.addOwned("t-a", "key", "one")
	k.mu.Lock()
	k.recordErr = errors.New("disk full")
	k.mu.Unlock()
	if _, err := k.UpdateOwned(t.Context(), "t-a", "key", []byte("two"), nil, "t-a"); err == nil {
		t.Error("Renew without a record: got no error")
	}
	if v, err := k.ResolveOwned(t.Context(), secret.Scope{Jail: jail1}, "t-a", "key", "h.example"); err == nil || len(v.Bytes()) > 0 {
		t.Errorf("ResolveOwned without a record = %v, want an error and no value", err)
	}
	k.mu.Lock()
	k.recordErr = nil
	k.mu.Unlock()
	if got, _ := k.FindOwned(t.Context(), "t-a", "key"); got.Version != 1 || k.resolveOwned("t-a", "key") != "one" {
		t.Errorf("FindOwned = %+v, want version 1", got)
	}
	k.close()
	for _, name := range files(t, k.dir) {
		if b, err := os.ReadFile(name); err != nil || strings.Contains(string(b), canary) {
			t.Errorf("%s contains the plaintext (%v)", name, err)
		}
	}
}

func TestOwnedSecretsAreLimited(t *testing.T) {
	k := newTestManager(t)
	for i := range 1000 {
		k.addOwned("t-a", fmt.Sprintf("key%d", i), "x")
	}
	if _, err := k.AddOwned(t.Context(), secret.OwnedSecret{Owner: "t-a", Name: "more", ID: "sec_more"}, []byte("x"), "t-a"); !errors.Is(err, fault.Conflict) {
		t.Errorf("Add beyond the maximum = %v, want %v", err, fault.Conflict)
	}
	k.addOwned("t-b", "key", "x")
	own := k.Owned("t-a")
	if len(own) != 1000 || !slices.IsSortedFunc(own, func(a, b secret.OwnedSecret) int { return a.Created.Compare(b.Created) }) {
		t.Errorf("Owned returned %d secrets, want 1000 sorted by time", len(own))
	}
}

func TestConcurrentAddCreatesOneSecret(t *testing.T) {
	k := newTestManager(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var created int
	for i := range 20 {
		wg.Go(func() {
			_, err := k.AddOwned(t.Context(), secret.OwnedSecret{Owner: "t-a", Name: "key", ID: fmt.Sprintf("sec_%d", i)}, []byte("x"), "t-a")
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				created++
			} else if !errors.Is(err, fault.Conflict) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i := range 20 {
		wg.Go(func() {
			if _, err := k.UpdateOwned(t.Context(), "t-a", "key", fmt.Appendf(nil, "%d", i), nil, "t-a"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if own := k.Owned("t-a"); created != 1 || len(own) != 1 || own[0].Version != 21 {
		t.Errorf("%d secrets created: %+v, want 1 with version 21", created, own)
	}
}

// TestOwnedSecretIsConsistentDuringRenewal uses a secret while it is renewed and the key is
// rotated. Each use gets a complete value and no error.
func TestOwnedSecretIsConsistentDuringRenewal(t *testing.T) {
	k := newTestManager(t)
	k.addOwned("t-a", "key", "value 0")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				v, err := k.ResolveOwned(t.Context(), secret.Scope{Jail: jail1}, "t-a", "key", "h.example")
				if err != nil || !strings.HasPrefix(string(v.Bytes()), "value ") {
					t.Errorf("ResolveOwned = %q, %v", v.Bytes(), err)
					return
				}
			}
		})
	}
	for i := range 20 {
		if _, err := k.UpdateOwned(t.Context(), "t-a", "key", fmt.Appendf(nil, "value %d", i+1), nil, "t-a"); err != nil {
			t.Error(err)
		}
		if err := k.Rotate(t.Context(), "me"); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
	if got, err := k.FindOwned(t.Context(), "t-a", "key"); err != nil || got.Version != 21 || k.resolveOwned("t-a", "key") != "value 20" {
		t.Errorf("FindOwned = %+v, %v; want version 21", got, err)
	}
}
