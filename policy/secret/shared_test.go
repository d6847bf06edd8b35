package secret_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/secret"
	"glasshouse/store"
	"glasshouse/store/storetest"
)

// newSharedManagers returns two managers that share a database and a key file. The first has the
// jail jail1.
func newSharedManagers(t *testing.T) (a, b *testManager) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "db")
	if err := storetest.Create(path); err != nil {
		t.Fatal(err)
	}
	db, err := store.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	for n, k := range []**testManager{&a, &b} {
		m := &testManager{t: t, dir: dir, db: db, changed: func(secret.Scope) {}}
		m.cfg = secret.Config{
			Store: db.Secrets(), Recorder: m, KeyFile: filepath.Join(dir, "secrets.key"),
			Changed: func(_ context.Context, s secret.Scope) error { m.changed(s); return m.changedErr },
			Shared: &secret.Shared{
				Version:  db.Secrets().Version,
				MakesKey: n == 0,
				Has:      func(jid id.Jail) bool { return n == 0 && jid == jail1 },
			},
		}
		m.Manager = secret.NewManager(m.cfg)
		if err := m.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		*k = m
	}
	return a, b
}

// resolveInJail returns the value of a secret for a jail, or the error.
func (k *testManager) resolveInJail(name string) (string, error) {
	v, err := k.Resolve(k.t.Context(), secret.Scope{Jail: jail1}, name, secret.Use{Delivery: secret.Inject, Host: "api.example.com"})
	if err != nil {
		return "", err
	}
	defer v.Zero()
	return string(v.Bytes()), nil
}

func (k *testManager) mustPut(name, value string) {
	k.t.Helper()
	if err := k.Put(k.t.Context(), name, []byte(value), "me"); err != nil {
		k.t.Fatal(err)
	}
}

func (k *testManager) mustGrant(g secret.Grant) secret.Grant {
	k.t.Helper()
	g, err := k.Grant(k.t.Context(), g)
	if err != nil {
		k.t.Fatal(err)
	}
	return g
}

func (k *testManager) mustRefresh() {
	k.t.Helper()
	if err := k.Refresh(k.t.Context()); err != nil {
		k.t.Fatal(err)
	}
}

func TestSecretsOfAnotherDaemonAreUsedAtOnce(t *testing.T) {
	a, b := newSharedManagers(t)
	a.mustPut("KEY", "value one")
	g := a.mustGrant(secret.Grant{Secret: "KEY", To: secret.Scope{Jail: jail1}, Delivery: secret.Inject, Hosts: []string{"api.example.com"}})
	if got, err := b.resolveInJail("KEY"); err != nil || got != "value one" { // without waiting for the loop
		t.Errorf("a new secret of another daemon = %q, %v, want one", got, err)
	}
	o, err := a.AddOwned(t.Context(), secret.OwnedSecret{Owner: "t-a", Name: "key", ID: "sec_1"}, []byte("owned"), "me")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := b.FindOwned(t.Context(), "t-a", o.ID); err != nil || got.Name != "key" {
		t.Errorf("an owned secret of another daemon = %+v, %v, want it", got, err)
	}
	if got := b.resolveOwned("t-a", "key"); got != "owned" {
		t.Errorf("its value = %q, want owned", got)
	}
	if _, err := b.AddOwned(t.Context(), secret.OwnedSecret{Owner: "t-a", Name: "key", ID: "sec_2"}, []byte("other"), "me"); !errors.Is(err, fault.Conflict) {
		t.Errorf("a second secret with a name at another daemon = %v, want conflict", err)
	}
	// Changes and ends.
	a.mustPut("KEY", "value two")
	b.mustRefresh()
	if got, err := b.resolveInJail("KEY"); err != nil || got != "value two" {
		t.Errorf("a changed value = %q, %v, want two", got, err)
	}
	if masked := b.Mask(t.Context(), secret.Scope{Jail: jail1}, []string{"KEY"}).Text("value one, value two"); strings.Contains(masked, "one") || strings.Contains(masked, "two") {
		t.Errorf("a text with the old and the new value = %q, want both masked", masked)
	}
	if err := b.Revoke(t.Context(), g.ID, "me"); err != nil {
		t.Fatal(err)
	}
	a.mustRefresh()
	if got, err := a.resolveInJail("KEY"); !errors.Is(err, fault.Denied) {
		t.Errorf("a secret whose grant another daemon revoked = %q, %v, want denied", got, err)
	}
	if err := a.Delete(t.Context(), "KEY", "me"); err != nil {
		t.Fatal(err)
	}
	b.mustRefresh()
	if slices.ContainsFunc(b.List(), func(i secret.Info) bool { return i.Name == "KEY" }) {
		t.Error("a secret that another daemon deleted is listed")
	}
}

func TestUseDoesNotReplaceChangesOfAnotherDaemon(t *testing.T) {
	a, b := newSharedManagers(t)
	a.mustPut("KEY", "one")
	a.mustGrant(secret.Grant{Secret: "KEY", To: secret.Scope{Jail: jail1}, Delivery: secret.Inject, Hosts: []string{"api.example.com"}})
	b.mustRefresh()
	a.mustPut("KEY", "two")
	if _, err := b.resolveInJail("KEY"); err != nil { // with the old value; it stores the time of use
		t.Fatal(err)
	}
	a.mustRefresh()
	b.mustRefresh()
	for _, k := range []*testManager{a, b} {
		if got, err := k.resolveInJail("KEY"); err != nil || got != "two" {
			t.Errorf("the value after a use at another daemon = %q, %v, want two", got, err)
		}
	}
	if list := b.List(); len(list) != 1 || list[0].Used == nil {
		t.Errorf("secrets = %+v, want one with its last use", list)
	}
}

func TestFilesFollowChangesOfAnotherDaemon(t *testing.T) {
	a, b := newSharedManagers(t)
	var changed []id.Jail
	a.changed = func(s secret.Scope) { changed = append(changed, s.Jail) }
	check := func(what string, want ...id.Jail) {
		t.Helper()
		changed = nil
		a.mustRefresh()
		slices.Sort(changed)
		if !slices.Equal(changed, want) {
			t.Errorf("%s updates the files of %q, want %q", what, changed, want)
		}
	}
	b.mustPut("KEY", "one")
	check("a new secret")
	g := b.mustGrant(secret.Grant{Secret: "KEY", To: secret.Scope{Jail: jail1}, Delivery: secret.File})
	b.mustGrant(secret.Grant{Secret: "KEY", To: secret.Scope{Jail: jail2}, Delivery: secret.Inject, Hosts: []string{"api.example.com"}})
	check("a new grant", jail1)
	check("no change")
	b.mustPut("KEY", "two")
	check("a new value", jail1)
	// It is repeated until it succeeds.
	b.mustPut("KEY", "again")
	a.changedErr = errors.New("the jail is busy")
	if err := a.Refresh(t.Context()); err == nil {
		t.Error("Refresh succeeds although the files could not be updated")
	}
	a.changedErr = nil
	check("a second attempt", jail1)
	// A change here that also reads those of the other leaves them to the loop.
	b.mustPut("KEY", "three")
	a.mustPut("OTHER", "x")
	check("an own change after one of another", jail1)
	if err := b.Revoke(t.Context(), g.ID, "me"); err != nil {
		t.Fatal(err)
	}
	check("the end of a grant", jail1)
}

func TestOnlyTheDaemonOfAJailEndsExpiredGrants(t *testing.T) {
	a, b := newSharedManagers(t)
	a.mustPut("KEY", "one")
	soon := time.Now().Add(300 * time.Millisecond)
	a.mustGrant(secret.Grant{Secret: "KEY", To: secret.Scope{Jail: jail1}, Delivery: secret.Inject, Hosts: []string{"api.example.com"}, Expires: &soon})
	b.mustRefresh()
	var recorded []string
	for deadline := time.Now().Add(10 * time.Second); len(recorded) < 3 && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		recorded = append(recorded, a.takeEvents()...) // the end is recorded after the grant was removed
	}
	if want := []string{"stored KEY", "granted KEY", "expired KEY"}; !slices.Equal(recorded, want) {
		t.Errorf("the daemon with the jail recorded %q, want %q", recorded, want)
	}
	if grants, err := a.db.Secrets().Grants(t.Context()); err != nil || len(grants) > 0 {
		t.Errorf("grants after the end: %v, %v, want none", grants, err)
	}
	b.expect("the other daemon")
	if _, err := b.resolveInJail("KEY"); !errors.Is(err, fault.Denied) {
		t.Errorf("an expired grant at the other daemon: %v, want denied", err)
	}
}

func TestSharedKeyIsNotMadeTwice(t *testing.T) {
	a, b := newSharedManagers(t)
	if err := b.Rotate(t.Context(), "me"); !errors.Is(err, fault.Unsupported) || fault.RemedyOf(err) == "" {
		t.Errorf("Rotate = %v, want unsupported with a remedy", err)
	}
	b.cfg.KeyFile = filepath.Join(t.TempDir(), "secrets.key")
	other := secret.NewManager(b.cfg)
	if err := other.Open(t.Context()); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Open without the key of the fleet = %v, want unavailable", err)
	}
	other.Close()
	a.mustPut("KEY", "one")
}

func TestMoveSecretsToAFleet(t *testing.T) {
	a, b := newSharedManagers(t)
	a.mustPut("TAKEN", "of the fleet")
	alone := newTestManager(t)
	alone.mustPut("KEY", "mine")
	alone.mustPut("TAKEN", "mine too")
	alone.mustGrant(secret.Grant{Secret: "KEY", To: secret.Scope{Jail: jail1}, Delivery: secret.Inject, Hosts: []string{"api.example.com"}})
	if _, err := alone.AddOwned(t.Context(), secret.OwnedSecret{Owner: "t-a", Name: "key", ID: "sec_1"}, []byte("owned"), "me"); err != nil {
		t.Fatal(err)
	}
	alone.Close()
	file := filepath.Join(alone.dir, "secrets.key")
	// The key of another daemon does not open them, and none is lost.
	if _, err := b.Move(t.Context(), alone.db.Secrets(), b.cfg.KeyFile); err == nil {
		t.Error("Move with the wrong key succeeds")
	}
	for range 2 { // the second finds nothing to move
		left, err := b.Move(t.Context(), alone.db.Secrets(), file)
		if err != nil || !slices.Equal(left, []string{"TAKEN"}) {
			t.Errorf("Move leaves %q, %v, want TAKEN", left, err)
		}
	}
	for name, want := range map[string]string{"KEY": "mine"} {
		if got, err := a.resolveInJail(name); err != nil || got != want {
			t.Errorf("%s in the fleet = %q, %v, want %q", name, got, err, want)
		}
	}
	if got := a.resolveOwned("t-a", "key"); got != "owned" {
		t.Errorf("the owned secret in the fleet = %q, want owned", got)
	}
	// A daemon that was killed after it had stored a copy moves the secret again.
	records, err := a.db.Secrets().Secrets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(records, func(r secret.Record) bool { return r.Name == "KEY" })
	again := newMemoryStore()
	copied := records[i]
	if err := again.PutSecret(t.Context(), copied); err != nil {
		t.Fatal(err)
	}
	if left, err := b.Move(t.Context(), again, b.cfg.KeyFile); err != nil || len(left) != 0 || len(again.secrets) != 0 {
		t.Errorf("Move of a copy leaves %q and %d secrets, %v, want none", left, len(again.secrets), err)
	}
	if got, err := a.resolveInJail("KEY"); err != nil || got != "mine" {
		t.Errorf("the secret after it = %q, %v, want mine", got, err)
	}
}
