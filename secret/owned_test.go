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
	"glasshouse/secret"
)

func (k *kept) add(owner, name, value string) secret.Own {
	k.t.Helper()
	o, err := k.Add(k.t.Context(), secret.Own{Owner: owner, Name: name, ID: "sec_" + owner + name}, []byte(value), owner)
	if err != nil {
		k.t.Fatal(err)
	}
	return o
}

// lent returns what a jail gets of an owner's secret, or "-".
func (k *kept) lent(owner, name string) string {
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

func TestAnOwnersSecretIsTheirsAlone(t *testing.T) {
	k := newKept(t)
	k.put("key", "the daemon's")
	a, b := k.add("t-a", "key", "a's "+canary), k.add("t-b", "key", "b's")
	if a.Version != 1 || a.Created.IsZero() || a.Created != a.Updated {
		t.Errorf("it is %+v", a)
	}
	for owner, want := range map[string]string{"t-a": "a's " + canary, "t-b": "b's", "t-c": "-", "": "-"} {
		if got := k.lent(owner, "key"); got != want {
			t.Errorf("of %q it is %q, want %q", owner, got, want)
		}
	}
	for _, name := range []string{"t-a:key", "key:", ":key", "KEY", ""} {
		if got := k.lent("t-b", name); got != "-" {
			t.Errorf("%q of b is %q", name, got)
		}
	}
	// Nobody has it by the ways in which secrets of the daemon are had.
	for _, name := range []string{"key", "t-a:key", a.ID} {
		for _, u := range []secret.Use{{Delivery: secret.File}, {Delivery: secret.Inject, Host: "api.example.com"}} {
			if got := k.get(secret.Scope{Jail: jail1, Capability: "t-a", Session: "t-a", Run: "t-a"}, name, u); got != "-" {
				t.Errorf("%s as %s is %q", name, u.Delivery, got)
			}
		}
	}
	if _, err := k.Grant(t.Context(), secret.Grant{Secret: "t-a:key", To: secret.Scope{Jail: jail1}, Delivery: secret.File}); !errors.Is(err, fault.Denied) {
		t.Errorf("granted: %v", err)
	}
	for _, put := range []error{k.Put(t.Context(), "t-a:key", []byte("x"), "me"), k.PutReference(t.Context(), "t-a:key", "env:X", "me")} {
		if !errors.Is(put, fault.Invalid) {
			t.Errorf("put in its place: %v", put)
		}
	}
	// One owner cannot mean another's.
	for _, ref := range []string{b.ID, "t-b:key", "none"} {
		_, find := k.FindOwned("t-a", ref)
		_, renew := k.Renew(t.Context(), "t-a", ref, []byte("x"), nil, "t-a")
		for _, err := range []error{find, renew, k.Drop(t.Context(), "t-a", ref, "t-a")} {
			if !errors.Is(err, fault.NotFound) || strings.Contains(err.Error(), ref) {
				t.Errorf("%s: %v", ref, err)
			}
		}
	}
	if got := k.Owned("t-a"); len(got) != 1 || got[0].ID != a.ID {
		t.Errorf("a owns %+v", got)
	}
	if got := k.Owned(""); got != nil {
		t.Errorf("nobody owns %+v", got)
	}
	list := k.List()
	if got := fmt.Sprint(list[0].Name, list[0].Owner, list[1].Name, list[1].Owner); len(list) != 3 || got != "keyt-a:keyt-a" {
		t.Errorf("whoever runs the daemon is told of %+v", list)
	}
}

func TestAnOwnersSecretHasVersions(t *testing.T) {
	k := newKept(t)
	a := k.add("t-a", "key", "one")
	more := map[string]string{"env": "test"}
	got, err := k.Renew(t.Context(), "t-a", "key", []byte("two"), more, "t-a")
	if err != nil || got.Version != 2 || got.ID != a.ID || got.Metadata["env"] != "test" || !got.Created.Equal(a.Created) || !got.Updated.After(a.Updated) {
		t.Errorf("renewed it is %+v, %v", got, err)
	}
	more["env"], got.Metadata["env"] = "theirs", "theirs" // what was given and got is the caller's
	got, err = k.Renew(t.Context(), "t-a", a.ID, []byte("three"), nil, "t-a")
	if err != nil || got.Version != 3 || got.Metadata["env"] != "test" {
		t.Errorf("without metadata it is %+v, %v", got, err)
	}
	for _, value := range []string{"", strings.Repeat("x", secret.MaxValue+1)} {
		if _, err := k.Renew(t.Context(), "t-a", "key", []byte(value), nil, "t-a"); err == nil {
			t.Errorf("%d bytes are taken", len(value))
		}
	}
	if err := k.Rotate(t.Context(), "me"); err != nil {
		t.Fatal(err)
	}
	k.reopen()
	if got, err := k.FindOwned("t-a", "key"); err != nil || got.Version != 3 || got.Metadata["env"] != "test" || k.lent("t-a", "key") != "three" {
		t.Errorf("when the daemon comes back, with another key, it is %+v, %v", got, err)
	}
	if got, err := k.Renew(t.Context(), "t-a", "key", []byte("four"), map[string]string{}, "t-a"); err != nil || len(got.Metadata) > 0 {
		t.Errorf("with empty metadata it is %+v, %v", got, err)
	}
	for _, o := range []secret.Own{{Owner: "t-a", Name: "key", ID: "sec_other"}, {Owner: "t-a", Name: "other", ID: a.ID}} {
		if _, err := k.Add(t.Context(), o, []byte("x"), "t-a"); !errors.Is(err, fault.Conflict) {
			t.Errorf("%+v again: %v", o, err)
		}
	}
	for _, o := range []secret.Own{{Owner: "t-a", ID: "sec_x"}, {Name: "n", ID: "sec_x"}, {Owner: "t-a", Name: "n"}, {Owner: "t-a", Name: "a:b", ID: "sec_x"}, {Owner: "t:a", Name: "b", ID: "sec_x"}, {Owner: "t-a", Name: "a\n", ID: "sec_x"}} {
		if _, err := k.Add(t.Context(), o, []byte("x"), "t-a"); !errors.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if err := k.Drop(t.Context(), "t-a", a.ID, "t-a"); err != nil {
		t.Fatal(err)
	}
	if got := k.lent("t-a", "key"); got != "-" {
		t.Errorf("once it is gone it is %q", got)
	}
	again := k.add("t-a", "key", "anew")
	if again.Version != 1 || k.lent("t-a", "key") != "anew" {
		t.Errorf("made anew it is %+v", again)
	}
	// Whoever runs the daemon can remove it too.
	if err := k.Delete(t.Context(), "t-a:key", "admin"); err != nil || k.Owned("t-a") != nil {
		t.Errorf("removed: %v, %v left", err, k.Owned("t-a"))
	}
}

func TestUseOfAnOwnersSecretIsRecordedOrDoesNotHappen(t *testing.T) {
	k := newKept(t)
	a := k.add("t-a", "key", "one")
	k.lent("t-a", "key")
	k.lent("t-a", "none")
	if _, err := k.Renew(t.Context(), "t-a", "key", []byte("two"), nil, "t-a"); err != nil {
		t.Fatal(err)
	}
	if err := k.Drop(t.Context(), "t-a", a.ID, "t-a"); err != nil {
		t.Fatal(err)
	}
	k.expect("all of it", "stored t-a:key", "used t-a:key", "refused t-a:none", "stored t-a:key", "deleted t-a:key")
	k.add("t-a", "key", "one")
	k.mu.Lock()
	k.deaf = errors.New("the disk is full")
	k.mu.Unlock()
	if _, err := k.Renew(t.Context(), "t-a", "key", []byte("two"), nil, "t-a"); err == nil {
		t.Error("renewed without a record")
	}
	if v, err := k.ResolveOwned(t.Context(), secret.Scope{Jail: jail1}, "t-a", "key", "h.example"); err == nil || len(v.Bytes()) > 0 {
		t.Errorf("used without a record: %v", err)
	}
	k.mu.Lock()
	k.deaf = nil
	k.mu.Unlock()
	if got, _ := k.FindOwned("t-a", "key"); got.Version != 1 || k.lent("t-a", "key") != "one" {
		t.Errorf("it is %+v", got)
	}
	k.close()
	for _, name := range files(t, k.dir) {
		if b, err := os.ReadFile(name); err != nil || strings.Contains(string(b), canary) {
			t.Errorf("%s holds it in the clear, or %v", name, err)
		}
	}
}

func TestOwnersAreBounded(t *testing.T) {
	k := newKept(t)
	for i := range 1000 {
		k.add("t-a", fmt.Sprintf("key%d", i), "x")
	}
	if _, err := k.Add(t.Context(), secret.Own{Owner: "t-a", Name: "more", ID: "sec_more"}, []byte("x"), "t-a"); !errors.Is(err, fault.Conflict) {
		t.Errorf("one too many: %v", err)
	}
	k.add("t-b", "key", "x")
	own := k.Owned("t-a")
	if len(own) != 1000 || !slices.IsSortedFunc(own, func(a, b secret.Own) int { return a.Created.Compare(b.Created) }) {
		t.Errorf("%d are listed, or not in order", len(own))
	}
}

func TestOfManyAtOnceOneMakesASecret(t *testing.T) {
	k := newKept(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var made int
	for i := range 20 {
		wg.Go(func() {
			_, err := k.Add(t.Context(), secret.Own{Owner: "t-a", Name: "key", ID: fmt.Sprintf("sec_%d", i)}, []byte("x"), "t-a")
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				made++
			} else if !errors.Is(err, fault.Conflict) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i := range 20 {
		wg.Go(func() {
			if _, err := k.Renew(t.Context(), "t-a", "key", fmt.Appendf(nil, "%d", i), nil, "t-a"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if own := k.Owned("t-a"); made != 1 || len(own) != 1 || own[0].Version != 21 {
		t.Errorf("%d are made: %+v", made, own)
	}
}

// TestAnOwnersSecretIsOneVersionOrAnother uses a secret while it is renewed and sealed
// anew: each use gets a value that it has had, never an error, never half of one.
func TestAnOwnersSecretIsOneVersionOrAnother(t *testing.T) {
	k := newKept(t)
	k.add("t-a", "key", "value 0")
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
					t.Errorf("%q, %v", v.Bytes(), err)
					return
				}
			}
		})
	}
	for i := range 20 {
		if _, err := k.Renew(t.Context(), "t-a", "key", fmt.Appendf(nil, "value %d", i+1), nil, "t-a"); err != nil {
			t.Error(err)
		}
		if err := k.Rotate(t.Context(), "me"); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
	if got, err := k.FindOwned("t-a", "key"); err != nil || got.Version != 21 || k.lent("t-a", "key") != "value 20" {
		t.Errorf("at last it is %+v, %v", got, err)
	}
}
