package secret_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/secret"
	"glasshouse/store"
	"glasshouse/store/storetest"
)

// A testManager is a Manager with a database file. It records events.
type testManager struct {
	*secret.Manager
	t          *testing.T
	dir        string
	db         *store.Store
	cfg        secret.Config
	changed    func(secret.Scope)
	changedErr error // error returned by Changed

	mu sync.Mutex
	// +checklocks:mu
	events []secret.Event
	// +checklocks:mu
	recordErr error // error returned by Record
}

func (k *testManager) Record(_ context.Context, e secret.Event) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.recordErr != nil {
		return k.recordErr
	}
	k.events = append(k.events, e)
	return nil
}

// takeEvents returns and removes the recorded events.
func (k *testManager) takeEvents() (all []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range k.events {
		all = append(all, string(e.Kind)+" "+e.Secret)
	}
	k.events = nil
	return all
}

func (k *testManager) expect(what string, want ...string) {
	k.t.Helper()
	if got := strings.Join(k.takeEvents(), ", "); got != strings.Join(want, ", ") {
		k.t.Errorf("%s: recorded %q, want %q", what, got, strings.Join(want, ", "))
	}
}

func newTestManager(t *testing.T, change ...func(*secret.Config)) *testManager {
	t.Helper()
	k := &testManager{t: t, dir: t.TempDir(), changed: func(secret.Scope) {}}
	k.cfg = secret.Config{Recorder: k, KeyFile: filepath.Join(k.dir, "secrets.key"), Changed: func(_ context.Context, s secret.Scope) error { k.changed(s); return k.changedErr }}
	for _, f := range change {
		f(&k.cfg)
	}
	if err := k.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.close() })
	return k
}

func (k *testManager) open() error {
	path := filepath.Join(k.dir, "db")
	if err := storetest.Create(path); err != nil {
		return err
	}
	db, err := store.Open(context.Background(), path)
	if err != nil {
		return err
	}
	k.db, k.cfg.Store = db, db.Secrets()
	k.Manager = secret.NewManager(k.cfg)
	if err := k.Open(context.Background()); err != nil {
		return errors.Join(err, db.Close())
	}
	return nil
}

func (k *testManager) close() { k.Close(); k.db.Close() }

func (k *testManager) reopen() {
	k.t.Helper()
	k.close()
	if err := k.open(); err != nil {
		k.t.Fatal(err)
	}
}

func (k *testManager) put(name, value string) {
	k.t.Helper()
	if err := k.Put(k.t.Context(), name, []byte(value), "me"); err != nil {
		k.t.Fatal(err)
	}
}

func (k *testManager) grant(g secret.Grant) secret.Grant {
	k.t.Helper()
	if g.Delivery == "" {
		g.Delivery = secret.File
	}
	g, err := k.Grant(k.t.Context(), g)
	if err != nil {
		k.t.Fatal(err)
	}
	return g
}

// resolve returns the value of a secret for who, or "-" if it is denied.
func (k *testManager) resolve(who secret.Scope, name string, u secret.Use) string {
	k.t.Helper()
	if u.Delivery == "" {
		u.Delivery = secret.File
	}
	v, err := k.Resolve(k.t.Context(), who, name, u)
	if errors.Is(err, fault.Denied) {
		return "-"
	}
	if err != nil {
		k.t.Fatal(err)
	}
	defer v.Zero()
	return string(v.Bytes())
}

const (
	jail1 = id.Jail("j-aaaaaaaaaaaa")
	jail2 = id.Jail("j-bbbbbbbbbbbb")
)

func TestSecretIsStoredEncrypted(t *testing.T) {
	k := newTestManager(t)
	value := []byte(canary)
	if err := k.Put(t.Context(), "API_KEY", value, "me"); err != nil {
		t.Fatal(err)
	}
	if string(value) == canary {
		t.Error("Put did not zero the bytes")
	}
	k.grant(secret.Grant{Secret: "API_KEY", To: secret.Scope{Jail: jail1}})
	k.reopen()
	if got := k.resolve(secret.Scope{Jail: jail1}, "API_KEY", secret.Use{}); got != canary {
		t.Errorf("value after a restart = %q, want %q", got, canary)
	}
	k.close()
	for _, name := range files(t, k.dir) {
		if b, err := os.ReadFile(name); err != nil || strings.Contains(string(b), canary) {
			t.Errorf("%s contains the plaintext (%v)", name, err)
		}
	}
	if fi, err := os.Stat(filepath.Join(k.dir, "secrets.key")); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode of the key file = %v, %v; want 0600", fi.Mode(), err)
	}
}

func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, filepath.Join(dir, e.Name()))
	}
	return names
}

func TestNamesAndValuesAreLimited(t *testing.T) {
	k := newTestManager(t)
	for _, name := range []string{"", "1A", "-a", ".a", "a/b", "a b", "a\n", "ä", "..", strings.Repeat("a", 129)} {
		if err := k.Put(t.Context(), name, []byte("x"), ""); !errors.Is(err, fault.Invalid) {
			t.Errorf("Put(%q) = %v, want %v", name, err, fault.Invalid)
		}
	}
	for _, name := range []string{"A", "_", "a.b-c_D9", strings.Repeat("a", 128)} {
		k.put(name, "x")
	}
	k.put("BIG", strings.Repeat("x", secret.MaxValue))
	if err := k.Put(t.Context(), "BIG", make([]byte, secret.MaxValue+1), ""); !errors.Is(err, fault.TooLarge) {
		t.Errorf("Put of a large value = %v, want %v", err, fault.TooLarge)
	}
	if err := k.Put(t.Context(), "A", nil, ""); !errors.Is(err, fault.Invalid) {
		t.Errorf("Put of an empty value = %v, want %v", err, fault.Invalid)
	}
	k.grant(secret.Grant{Secret: "BIG", To: secret.Scope{Jail: jail1}})
	if got := k.resolve(secret.Scope{Jail: jail1}, "BIG", secret.Use{}); len(got) != secret.MaxValue {
		t.Errorf("value has %d bytes, want %d", len(got), secret.MaxValue)
	}
}

func TestResolveRequiresAGrant(t *testing.T) {
	k := newTestManager(t)
	k.put("A", "one")
	all := secret.Scope{Capability: "c", Jail: jail1, Session: "s", Run: "r"}
	for _, tt := range []struct {
		to  secret.Scope
		yes []secret.Scope
		no  []secret.Scope
	}{
		{secret.Scope{Jail: jail1}, []secret.Scope{all, {Jail: jail1}}, []secret.Scope{{}, {Jail: jail2}, {Session: "s"}, {Run: string(jail1)}}},
		{secret.Scope{Session: "s"}, []secret.Scope{all, {Session: "s", Jail: jail2}}, []secret.Scope{{}, {Session: "S"}, {Jail: jail1}}},
		{secret.Scope{Capability: "c", Run: "r"}, []secret.Scope{all, {Capability: "c", Run: "r"}}, []secret.Scope{{}, {Capability: "c"}, {Run: "r"}, {Capability: "c", Run: "x"}}},
	} {
		g := k.grant(secret.Grant{Secret: "A", To: tt.to})
		for _, who := range tt.yes {
			if got := k.resolve(who, "A", secret.Use{}); got != "one" {
				t.Errorf("granted to %v: value for %v = %q, want one", tt.to, who, got)
			}
		}
		for _, who := range tt.no {
			if got := k.resolve(who, "A", secret.Use{}); got != "-" {
				t.Errorf("granted to %v: value for %v = %q, want it denied", tt.to, who, got)
			}
		}
		if err := k.Revoke(t.Context(), g.ID, "me"); err != nil {
			t.Fatal(err)
		}
		for _, who := range tt.yes {
			if got := k.resolve(who, "A", secret.Use{}); got != "-" {
				t.Errorf("after Revoke: value for %v = %q, want it denied", who, got)
			}
		}
		if err := k.Revoke(t.Context(), g.ID, "me"); !errors.Is(err, fault.NotFound) {
			t.Errorf("second Revoke = %v, want %v", err, fault.NotFound)
		}
	}
}

func TestResolveWithoutGrantDoesNotRevealExistence(t *testing.T) {
	k := newTestManager(t)
	k.put("A", "one")
	_, existing := k.Resolve(t.Context(), secret.Scope{Jail: jail1}, "A", secret.Use{Delivery: secret.File})
	_, missing := k.Resolve(t.Context(), secret.Scope{Jail: jail1}, "B", secret.Use{Delivery: secret.File})
	if existing == nil || missing == nil || strings.Replace(existing.Error(), ": A:", ": B:", 1) != missing.Error() {
		t.Errorf("errors of an existing and a missing secret differ: %q and %q", existing, missing)
	}
	k.expect("events", "stored A", "refused A", "refused B")
	if _, err := k.Resolve(t.Context(), secret.Scope{Jail: jail1}, "\x1b[2J../..", secret.Use{Delivery: secret.File}); !errors.Is(err, fault.Denied) || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("Resolve of an invalid name = %q, want %v", err, fault.Denied)
	}
}

func TestInjectionMatchesTheHostsOfTheGrant(t *testing.T) {
	k := newTestManager(t)
	k.put("A", "one")
	k.grant(secret.Grant{Secret: "A", To: secret.Scope{Jail: jail1}, Delivery: secret.Inject, Hosts: []string{"api.example.com", "*.svc.example.org"}})
	who := secret.Scope{Jail: jail1}
	for host, want := range map[string]string{
		"api.example.com": "one", "API.Example.Com": "one", "api.example.com.": "one", "a.svc.example.org": "one", "a.b.svc.example.org": "one",
		"example.com": "-", "xapi.example.com": "-", "api.example.com.evil.net": "-", "svc.example.org": "-", ".svc.example.org": "-", "xsvc.example.org": "-", "": "-",
	} {
		if got := k.resolve(who, "A", secret.Use{Delivery: secret.Inject, Host: host}); got != want {
			t.Errorf("value for host %q = %q, want %q", host, got, want)
		}
	}
	if got := k.resolve(who, "A", secret.Use{Delivery: secret.File}); got != "-" {
		t.Errorf("value as a file = %q, want it denied", got)
	}
	if values, err := k.Files(t.Context(), who); err != nil || len(values) > 0 {
		t.Errorf("Files = %v, %v", values, err)
	}
}

func TestInvalidGrantsAreRefused(t *testing.T) {
	k := newTestManager(t)
	k.put("A", "one")
	past := time.Now().Add(-time.Second)
	to := secret.Scope{Jail: jail1}
	for what, g := range map[string]secret.Grant{
		"no subject":            {Secret: "A", Delivery: secret.File},
		"invalid jail id":       {Secret: "A", To: secret.Scope{Jail: "../etc"}, Delivery: secret.File},
		"no delivery":           {Secret: "A", To: to},
		"unknown delivery":      {Secret: "A", To: to, Delivery: "env"},
		"file with hosts":       {Secret: "A", To: to, Delivery: secret.File, Hosts: []string{"a.example"}},
		"no hosts":              {Secret: "A", To: to, Delivery: secret.Inject},
		"all hosts":             {Secret: "A", To: to, Delivery: secret.Inject, Hosts: []string{"*"}},
		"top-level domain":      {Secret: "A", To: to, Delivery: secret.Inject, Hosts: []string{"*.com"}},
		"wildcard inside":       {Secret: "A", To: to, Delivery: secret.Inject, Hosts: []string{"a.*.example.com"}},
		"upper case":            {Secret: "A", To: to, Delivery: secret.Inject, Hosts: []string{"A.example.com"}},
		"URL":                   {Secret: "A", To: to, Delivery: secret.Inject, Hosts: []string{"https://a.example"}},
		"branches without jail": {Secret: "A", To: secret.Scope{Run: "r"}, Delivery: secret.File, Branches: true},
		"expired":               {Secret: "A", To: to, Delivery: secret.File, Expires: &past},
		"control characters":    {Secret: "A", To: secret.Scope{Run: "r\n"}, Delivery: secret.File},
	} {
		if _, err := k.Grant(t.Context(), g); !errors.Is(err, fault.Invalid) {
			t.Errorf("Grant with %s = %v, want %v", what, err, fault.Invalid)
		}
	}
	if _, err := k.Grant(t.Context(), secret.Grant{Secret: "B", To: to, Delivery: secret.File}); !errors.Is(err, fault.NotFound) {
		t.Errorf("Grant of a missing secret = %v, want %v", err, fault.NotFound)
	}
}

func TestEventsAreRecordedByName(t *testing.T) {
	k := newTestManager(t)
	k.put("A", "one")
	k.put("B", "two")
	g := k.grant(secret.Grant{Secret: "A", To: secret.Scope{Jail: jail1}, Branches: true})
	k.grant(secret.Grant{Secret: "B", To: secret.Scope{Jail: jail1}})
	k.resolve(secret.Scope{Jail: jail1}, "A", secret.Use{})
	k.resolve(secret.Scope{Jail: jail2}, "A", secret.Use{})
	k.expect("Resolve", "stored A", "stored B", "granted A", "granted B", "used A", "refused A")
	if err := k.CopyGrantsToBranch(t.Context(), jail1, jail2); err != nil {
		t.Fatal(err)
	}
	k.expect("Branched", "granted A")
	if err := k.Revoke(t.Context(), g.ID, "me"); err != nil {
		t.Fatal(err)
	}
	k.expect("Revoke", "revoked A", "revoked A")
	if err := errors.Join(k.Rotate(t.Context(), "me"), k.Delete(t.Context(), "B", "me")); err != nil {
		t.Fatal(err)
	}
	k.expect("Rotate and Delete", "rotated ", "deleted B", "revoked B")
	if err := k.Delete(t.Context(), "B", "me"); !errors.Is(err, fault.NotFound) {
		t.Errorf("second Delete = %v, want %v", err, fault.NotFound)
	}
}

func TestUnrecordedChangesDoNotHappen(t *testing.T) {
	k := newTestManager(t)
	k.put("A", "one")
	g := k.grant(secret.Grant{Secret: "A", To: secret.Scope{Jail: jail1}})
	full := errors.New("disk full")
	k.mu.Lock()
	k.recordErr = full
	k.mu.Unlock()
	if v, err := k.Resolve(t.Context(), secret.Scope{Jail: jail1}, "A", secret.Use{Delivery: secret.File}); !errors.Is(err, full) || v.Bytes() != nil {
		t.Errorf("Resolve = %v, want %v", err, full)
	}
	if err := k.Put(t.Context(), "B", []byte("x"), ""); !errors.Is(err, full) {
		t.Errorf("Put = %v, want %v", err, full)
	}
	if _, err := k.Grant(t.Context(), secret.Grant{Secret: "A", To: secret.Scope{Run: "r"}, Delivery: secret.File}); !errors.Is(err, full) {
		t.Errorf("Grant = %v, want %v", err, full)
	}
	if err := k.Revoke(t.Context(), g.ID, ""); !errors.Is(err, full) { // takes effect despite the error
		t.Errorf("Revoke = %v, want %v", err, full)
	}
	k.mu.Lock()
	k.recordErr = nil
	k.mu.Unlock()
	if got := k.resolve(secret.Scope{Jail: jail1}, "A", secret.Use{}); got != "-" {
		t.Errorf("value after Revoke = %q, want it denied", got)
	}
	if list := k.List(); len(list) != 1 || len(list[0].Grants) != 0 {
		t.Errorf("List = %+v, want one secret without grants", list)
	}
}

func TestListHasNoValues(t *testing.T) {
	k := newTestManager(t)
	k.put("B", canary)
	k.put("A", canary)
	g := k.grant(secret.Grant{Secret: "A", To: secret.Scope{Session: "s"}, By: "me"})
	if list := k.List(); list[0].Used != nil {
		t.Error("an unused secret has a time of last use")
	}
	k.resolve(secret.Scope{Session: "s"}, "A", secret.Use{})
	k.reopen()
	list := k.List()
	if len(list) != 2 || list[0].Name != "A" || list[1].Name != "B" || list[0].Provider != "local" || list[0].Used == nil || list[1].Used != nil ||
		len(list[0].Grants) != 1 || list[0].Grants[0].ID != g.ID || list[0].Grants[0].By != "me" {
		t.Errorf("List = %+v", list)
	}
	if s := fmt.Sprintf("%+v %#v", list, list); strings.Contains(s, canary) {
		t.Error("the list contains a value")
	}
	created := list[0].Created
	k.put("A", "another")
	list = k.List()
	if !list[0].Created.Equal(created) || !list[0].Updated.After(created) || list[0].Used == nil {
		t.Errorf("List after a second Put = %+v", list[0])
	}
}

func TestFilesOfLiveGrants(t *testing.T) {
	k := newTestManager(t)
	var notified []secret.Scope
	k.changed = func(s secret.Scope) { notified = append(notified, s) }
	k.put("A", "one")
	k.put("B", "two")
	who := secret.Scope{Jail: jail1, Session: "s"}
	k.grant(secret.Grant{Secret: "B", To: secret.Scope{Jail: jail1}})
	k.grant(secret.Grant{Secret: "A", To: secret.Scope{Session: "s"}})
	k.grant(secret.Grant{Secret: "A", To: secret.Scope{Jail: jail1}}) // still one file
	values, err := k.Files(t.Context(), who)
	if err != nil || len(values) != 2 || values[0].Name() != "A" || values[1].Name() != "B" || string(values[1].Bytes()) != "two" {
		t.Errorf("Files = %v, %v", values, err)
	}
	if len(notified) != 3 {
		t.Errorf("notified scopes = %v, want 3", notified)
	}
	notified = nil
	k.put("A", "other")
	if len(notified) != 2 {
		t.Errorf("notified scopes of a new value = %v, want 2", notified)
	}
	notified = nil
	if err := k.JailDeleted(t.Context(), jail1); err != nil || notified != nil {
		t.Errorf("notified scopes of Gone = %v, %v; want none", notified, err)
	}
	if values, err := k.Files(t.Context(), who); err != nil || len(values) != 1 {
		t.Errorf("Files = %v, %v", values, err)
	}
}

func TestChangedErrorsAreReturned(t *testing.T) {
	k := newTestManager(t)
	k.put("A", "one")
	g := k.grant(secret.Grant{Secret: "A", To: secret.Scope{Jail: jail1}})
	k.changedErr = errors.New("no response from the jail")
	if _, err := k.Grant(t.Context(), secret.Grant{Secret: "A", To: secret.Scope{Jail: jail2}, Delivery: secret.File}); !errors.Is(err, k.changedErr) {
		t.Errorf("Grant = %v", err)
	}
	if err := k.Put(t.Context(), "A", []byte("two"), ""); !errors.Is(err, k.changedErr) {
		t.Errorf("Put = %v", err)
	}
	if err := k.Revoke(t.Context(), g.ID, ""); !errors.Is(err, k.changedErr) {
		t.Errorf("Revoke = %v", err)
	}
	if err := k.Delete(t.Context(), "A", ""); !errors.Is(err, k.changedErr) {
		t.Errorf("Delete = %v", err)
	}
	if list := k.List(); len(list) != 0 { // all changes took effect
		t.Errorf("List = %+v, want it empty", list)
	}
}

// A flakyProvider is a provider that can be unavailable.
type flakyProvider struct{ down bool }

func (*flakyProvider) Check(string) error { return nil }

func (p *flakyProvider) Fetch(_ context.Context, path string) ([]byte, error) {
	if p.down {
		return nil, fault.Newf(fault.Unavailable, "test", path, "provider down")
	}
	return []byte("value of " + path), nil
}

func TestRevokeWithAnUnavailableProvider(t *testing.T) {
	p := &flakyProvider{}
	k := newTestManager(t, func(c *secret.Config) { c.Providers = map[string]secret.Provider{"far": p} })
	k.put("NEAR", "one")
	if err := k.PutReference(t.Context(), "FAR", "far:key", ""); err != nil {
		t.Fatal(err)
	}
	who := secret.Scope{Jail: jail1}
	near := k.grant(secret.Grant{Secret: "NEAR", To: who})
	k.grant(secret.Grant{Secret: "FAR", To: who})
	p.down = true
	files, err := k.Files(t.Context(), who)
	if len(files) != 2 || files[0].Name() != "FAR" || files[0].Bytes() != nil || string(files[1].Bytes()) != "one" || !errors.Is(err, fault.Unavailable) {
		t.Errorf("Files = %v, %v", files, err)
	}
	if err := k.Revoke(t.Context(), near.ID, ""); err != nil {
		t.Fatal(err)
	}
	files, err = k.Files(t.Context(), who)
	if len(files) != 1 || files[0].Name() != "FAR" || !errors.Is(err, fault.Unavailable) {
		t.Errorf("Files = %v, %v", files, err)
	}
	p.down = false
	files, err = k.Files(t.Context(), who)
	if err != nil || len(files) != 1 || string(files[0].Bytes()) != "value of key" {
		t.Errorf("Files = %v, %v", files, err)
	}
}

func TestGrantExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &testManager{t: t, dir: t.TempDir()}
		var notified []secret.Scope
		m := newMemoryStore()
		k.Manager = secret.NewManager(secret.Config{Store: m, Recorder: k, KeyFile: filepath.Join(k.dir, "key"), Changed: func(_ context.Context, s secret.Scope) error { notified = append(notified, s); return nil }})
		if err := k.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		k.put("A", "one")
		end := time.Now().Add(time.Minute)
		k.grant(secret.Grant{Secret: "A", To: secret.Scope{Jail: jail1}, Expires: &end})
		later := time.Now().Add(10 * time.Hour)
		k.grant(secret.Grant{Secret: "A", To: secret.Scope{Jail: jail2}, Expires: &later})
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if got := k.resolve(secret.Scope{Jail: jail1}, "A", secret.Use{}); got != "one" {
			t.Errorf("value before the expiry = %q, want one", got)
		}
		notified = nil
		m.fail(errors.New("database unavailable"))
		time.Sleep(time.Second)
		synctest.Wait()
		if got := k.resolve(secret.Scope{Jail: jail1}, "A", secret.Use{}); got != "-" || len(notified) != 1 {
			t.Errorf("value after the expiry = %q, notified %v; want it denied and 1 scope", got, notified)
		}
		m.fail(nil)
		time.Sleep(time.Minute) // expireLoop retries the failed deletion
		synctest.Wait()
		if left, _ := m.Grants(t.Context()); len(left) != 1 || left[0].To.Jail != jail2 {
			t.Errorf("remaining grants = %+v, want that of %s", left, jail2)
		}
		time.Sleep(10 * time.Hour)
		synctest.Wait()
		if left, _ := m.Grants(t.Context()); len(left) != 0 {
			t.Errorf("remaining grants = %+v, want none", left)
		}
	})
}

func TestEndOfAGrantIsRecordedOnce(t *testing.T) {
	for _, c := range []struct {
		name  string
		again func(k *testManager, g secret.Grant) error // after the store is available again
		want  string
	}{
		{"expiry", func(*testManager, secret.Grant) error {
			time.Sleep(time.Minute) // expireLoop retries the failed deletion
			synctest.Wait()
			return nil
		}, "revoked A"},
		{"Revoke", func(k *testManager, g secret.Grant) error { return k.Revoke(t.Context(), g.ID, "me") }, "revoked A"},
		{"JailDeleted", func(k *testManager, g secret.Grant) error { return k.JailDeleted(t.Context(), g.To.Jail) }, "revoked A"},
		{"Delete", func(k *testManager, _ secret.Grant) error { return k.Delete(t.Context(), "A", "me") }, "revoked A, deleted A"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, m := &testManager{t: t, dir: t.TempDir()}, newMemoryStore()
				k.Manager = secret.NewManager(secret.Config{Store: m, Recorder: k, KeyFile: filepath.Join(k.dir, "key")})
				if err := k.Open(t.Context()); err != nil {
					t.Fatal(err)
				}
				defer k.Close()
				k.put("A", "one")
				g := k.grant(secret.Grant{Secret: "A", To: secret.Scope{Jail: jail1}})
				synctest.Wait() // expireLoop has read the grants
				k.takeEvents()

				broken := errors.New("database unavailable")
				m.fail(broken)
				if err := k.Revoke(t.Context(), g.ID, "me"); !errors.Is(err, broken) {
					t.Errorf("Revoke = %v, want %v", err, broken)
				}
				if err := k.Revoke(t.Context(), g.ID, "me"); !errors.Is(err, broken) {
					t.Errorf("second Revoke = %v, want %v", err, broken)
				}
				synctest.Wait() // expireLoop has failed too
				m.fail(nil)
				if err := c.again(k, g); err != nil {
					t.Errorf("%s after the failed Revoke = %v", c.name, err)
				}
				k.expect(c.name, c.want)
				if left, _ := m.Grants(t.Context()); len(left) != 0 {
					t.Errorf("remaining grants = %+v, want none", left)
				}
			})
		})
	}
}

// An end that could not be recorded is recorded by the next attempt to delete the grant.
func TestUnrecordedEndOfAGrantIsRecordedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, m := &testManager{t: t, dir: t.TempDir()}, newMemoryStore()
		k.Manager = secret.NewManager(secret.Config{Store: m, Recorder: k, KeyFile: filepath.Join(k.dir, "key")})
		if err := k.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		k.put("A", "one")
		g := k.grant(secret.Grant{Secret: "A", To: secret.Scope{Jail: jail1}})
		synctest.Wait() // expireLoop has read the grants
		k.takeEvents()

		fail := func(err error) {
			m.fail(err)
			k.mu.Lock()
			k.recordErr = err
			k.mu.Unlock()
		}
		full := errors.New("disk full")
		fail(full)
		if err := k.Revoke(t.Context(), g.ID, "me"); !errors.Is(err, full) {
			t.Errorf("Revoke = %v, want %v", err, full)
		}
		synctest.Wait() // expireLoop has failed too
		fail(nil)
		if err := k.Revoke(t.Context(), g.ID, "me"); err != nil {
			t.Errorf("second Revoke = %v", err)
		}
		k.expect("second Revoke", "revoked A")
	})
}

func TestBranchesGetTheirOwnGrants(t *testing.T) {
	k := newTestManager(t)
	k.put("A", "one")
	k.put("B", "two")
	first := k.grant(secret.Grant{Secret: "A", To: secret.Scope{Jail: jail1, Session: "s"}, Branches: true})
	k.grant(secret.Grant{Secret: "B", To: secret.Scope{Jail: jail1}})
	const jail3 = id.Jail("j-cccccccccccc")
	if err := errors.Join(k.CopyGrantsToBranch(t.Context(), jail1, jail2), k.CopyGrantsToBranch(t.Context(), jail2, jail3)); err != nil {
		t.Fatal(err)
	}
	k.reopen()
	for _, j := range []id.Jail{jail2, jail3} {
		who := secret.Scope{Jail: j, Session: "s"}
		if a, b := k.resolve(who, "A", secret.Use{}), k.resolve(who, "B", secret.Use{}); a != "one" || b != "-" {
			t.Errorf("values for %s = %q and %q, want one and denied", j, a, b)
		}
	}
	if err := k.JailDeleted(t.Context(), jail2); err != nil {
		t.Fatal(err)
	}
	if got := k.resolve(secret.Scope{Jail: jail3, Session: "s"}, "A", secret.Use{}); got != "one" {
		t.Errorf("value for the branch of a deleted branch = %q, want one", got)
	}
	if err := k.Revoke(t.Context(), first.ID, ""); err != nil {
		t.Fatal(err)
	}
	if got := k.resolve(secret.Scope{Jail: jail3, Session: "s"}, "A", secret.Use{}); got != "-" {
		t.Errorf("value after Revoke of the original grant = %q, want it denied", got)
	}
}

func TestConcurrentUseAndChange(t *testing.T) {
	k := newTestManager(t)
	var all sync.WaitGroup
	for i := range 8 {
		name := fmt.Sprintf("S%d", i%3)
		who := secret.Scope{Run: fmt.Sprint(i)}
		all.Go(func() {
			for n := range 20 {
				k.Put(t.Context(), name, []byte(name), "")
				g, err := k.Grant(t.Context(), secret.Grant{Secret: name, To: who, Delivery: secret.File})
				if err == nil {
					if v, err := k.Resolve(t.Context(), who, name, secret.Use{Delivery: secret.File}); err == nil && string(v.Bytes()) != name {
						t.Errorf("value of %s = %q", name, v.Bytes())
					}
					k.List()
					k.Revoke(t.Context(), g.ID, "")
				}
				switch {
				case i == 0 && n%5 == 0:
					if err := k.Rotate(t.Context(), ""); err != nil {
						t.Error(err)
					}
				case i == 1 && n%7 == 0:
					k.Delete(t.Context(), name, "")
				}
			}
		})
	}
	all.Wait()
	k.reopen()
	for _, s := range k.List() {
		if len(s.Grants) > 0 {
			t.Errorf("remaining grants of %s = %+v, want none", s.Name, s.Grants)
		}
	}
}
