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
	"glasshouse/secret"
	"glasshouse/store"
	"glasshouse/store/storetest"
)

// A kept is a Keeper as a daemon has it, over a database in a file.
type kept struct {
	*secret.Keeper
	t       *testing.T
	dir     string
	db      *store.Store
	cfg     secret.Config
	changed func(secret.Scope)
	stuck   error // what Changed returns

	mu sync.Mutex
	// +checklocks:mu
	events []secret.Event
	// +checklocks:mu
	deaf error // what the record says instead
}

func (k *kept) Record(_ context.Context, e secret.Event) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.deaf != nil {
		return k.deaf
	}
	k.events = append(k.events, e)
	return nil
}

// told returns what was recorded since it was last asked.
func (k *kept) told() (all []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range k.events {
		all = append(all, string(e.Kind)+" "+e.Secret)
	}
	k.events = nil
	return all
}

func (k *kept) expect(what string, want ...string) {
	k.t.Helper()
	if got := strings.Join(k.told(), ", "); got != strings.Join(want, ", ") {
		k.t.Errorf("%s: recorded %q, want %q", what, got, strings.Join(want, ", "))
	}
}

func newKept(t *testing.T, change ...func(*secret.Config)) *kept {
	t.Helper()
	k := &kept{t: t, dir: t.TempDir(), changed: func(secret.Scope) {}}
	k.cfg = secret.Config{Recorder: k, KeyFile: filepath.Join(k.dir, "secrets.key"), Changed: func(_ context.Context, s secret.Scope) error { k.changed(s); return k.stuck }}
	for _, f := range change {
		f(&k.cfg)
	}
	if err := k.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.close() })
	return k
}

func (k *kept) open() error {
	path := filepath.Join(k.dir, "db")
	if err := storetest.Create(path); err != nil {
		return err
	}
	db, err := store.Open(context.Background(), path)
	if err != nil {
		return err
	}
	k.db, k.cfg.Store = db, db.Secrets()
	k.Keeper = secret.NewKeeper(k.cfg)
	if err := k.Open(context.Background()); err != nil {
		return errors.Join(err, db.Close())
	}
	return nil
}

func (k *kept) close() { k.Close(); k.db.Close() }

func (k *kept) reopen() {
	k.t.Helper()
	k.close()
	if err := k.open(); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kept) put(name, value string) {
	k.t.Helper()
	if err := k.Put(k.t.Context(), name, []byte(value), "me"); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kept) grant(g secret.Grant) secret.Grant {
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

// get returns what who gets of a secret, or "-".
func (k *kept) get(who secret.Scope, name string, u secret.Use) string {
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

func TestASecretIsKeptSealed(t *testing.T) {
	k := newKept(t)
	value := []byte(canary)
	if err := k.Put(t.Context(), "API_KEY", value, "me"); err != nil {
		t.Fatal(err)
	}
	if string(value) == canary {
		t.Error("the caller's bytes are not overwritten")
	}
	k.grant(secret.Grant{Secret: "API_KEY", To: secret.Scope{Jail: jail1}})
	k.reopen()
	if got := k.get(secret.Scope{Jail: jail1}, "API_KEY", secret.Use{}); got != canary {
		t.Errorf("it is %q when the daemon comes back", got)
	}
	k.close()
	for _, name := range files(t, k.dir) {
		if b, err := os.ReadFile(name); err != nil || strings.Contains(string(b), canary) {
			t.Errorf("%s holds it in the clear, or %v", name, err)
		}
	}
	if fi, err := os.Stat(filepath.Join(k.dir, "secrets.key")); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the key file: %v, %v", fi.Mode(), err)
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

func TestNamesAndValuesAreBounded(t *testing.T) {
	k := newKept(t)
	for _, name := range []string{"", "1A", "-a", ".a", "a/b", "a b", "a\n", "ä", "..", strings.Repeat("a", 129)} {
		if err := k.Put(t.Context(), name, []byte("x"), ""); !errors.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"A", "_", "a.b-c_D9", strings.Repeat("a", 128)} {
		k.put(name, "x")
	}
	k.put("BIG", strings.Repeat("x", secret.MaxValue))
	if err := k.Put(t.Context(), "BIG", make([]byte, secret.MaxValue+1), ""); !errors.Is(err, fault.TooLarge) {
		t.Errorf("too large: %v", err)
	}
	if err := k.Put(t.Context(), "A", nil, ""); !errors.Is(err, fault.Invalid) {
		t.Errorf("empty: %v", err)
	}
	k.grant(secret.Grant{Secret: "BIG", To: secret.Scope{Jail: jail1}})
	if got := k.get(secret.Scope{Jail: jail1}, "BIG", secret.Use{}); len(got) != secret.MaxValue {
		t.Errorf("it comes back with %d bytes", len(got))
	}
}

func TestOnlyWhoWasGrantedASecretHasIt(t *testing.T) {
	k := newKept(t)
	k.put("A", "one")
	all := secret.Scope{Capability: "c", Jail: jail1, Session: "s", Run: "r"}
	for _, tt := range []struct {
		to   secret.Scope
		yes  []secret.Scope
		nope []secret.Scope
	}{
		{secret.Scope{Jail: jail1}, []secret.Scope{all, {Jail: jail1}}, []secret.Scope{{}, {Jail: jail2}, {Session: "s"}, {Run: string(jail1)}}},
		{secret.Scope{Session: "s"}, []secret.Scope{all, {Session: "s", Jail: jail2}}, []secret.Scope{{}, {Session: "S"}, {Jail: jail1}}},
		{secret.Scope{Capability: "c", Run: "r"}, []secret.Scope{all, {Capability: "c", Run: "r"}}, []secret.Scope{{}, {Capability: "c"}, {Run: "r"}, {Capability: "c", Run: "x"}}},
	} {
		g := k.grant(secret.Grant{Secret: "A", To: tt.to})
		for _, who := range tt.yes {
			if got := k.get(who, "A", secret.Use{}); got != "one" {
				t.Errorf("granted to %v, %v gets %q", tt.to, who, got)
			}
		}
		for _, who := range tt.nope {
			if got := k.get(who, "A", secret.Use{}); got != "-" {
				t.Errorf("granted to %v, %v gets %q", tt.to, who, got)
			}
		}
		if err := k.Revoke(t.Context(), g.ID, "me"); err != nil {
			t.Fatal(err)
		}
		for _, who := range tt.yes {
			if got := k.get(who, "A", secret.Use{}); got != "-" {
				t.Errorf("revoked, %v gets %q", who, got)
			}
		}
		if err := k.Revoke(t.Context(), g.ID, "me"); !errors.Is(err, fault.NotFound) {
			t.Errorf("revoked twice: %v", err)
		}
	}
}

func TestWhoHasNoGrantDoesNotLearnWhatThereIs(t *testing.T) {
	k := newKept(t)
	k.put("A", "one")
	_, there := k.Resolve(t.Context(), secret.Scope{Jail: jail1}, "A", secret.Use{Delivery: secret.File})
	_, not := k.Resolve(t.Context(), secret.Scope{Jail: jail1}, "B", secret.Use{Delivery: secret.File})
	if there == nil || not == nil || strings.Replace(there.Error(), ": A:", ": B:", 1) != not.Error() {
		t.Errorf("told apart: %q and %q", there, not)
	}
	k.expect("both", "stored A", "refused A", "refused B")
	if _, err := k.Resolve(t.Context(), secret.Scope{Jail: jail1}, "\x1b[2J../..", secret.Use{Delivery: secret.File}); !errors.Is(err, fault.Denied) || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("a strange name: %q", err)
	}
}

func TestInjectionIsForTheHostsOfTheGrant(t *testing.T) {
	k := newKept(t)
	k.put("A", "one")
	k.grant(secret.Grant{Secret: "A", To: secret.Scope{Jail: jail1}, Delivery: secret.Inject, Hosts: []string{"api.example.com", "*.svc.example.org"}})
	who := secret.Scope{Jail: jail1}
	for host, want := range map[string]string{
		"api.example.com": "one", "API.Example.Com": "one", "api.example.com.": "one", "a.svc.example.org": "one", "a.b.svc.example.org": "one",
		"example.com": "-", "xapi.example.com": "-", "api.example.com.evil.net": "-", "svc.example.org": "-", ".svc.example.org": "-", "xsvc.example.org": "-", "": "-",
	} {
		if got := k.get(who, "A", secret.Use{Delivery: secret.Inject, Host: host}); got != want {
			t.Errorf("for %q it is %q, want %q", host, got, want)
		}
	}
	if got := k.get(who, "A", secret.Use{Delivery: secret.File}); got != "-" {
		t.Errorf("as a file it is %q", got)
	}
	if values, err := k.Files(t.Context(), who); err != nil || len(values) > 0 {
		t.Errorf("files %v, %v", values, err)
	}
}

func TestGrantsThatNobodyMeansAreRefused(t *testing.T) {
	k := newKept(t)
	k.put("A", "one")
	past := time.Now().Add(-time.Second)
	to := secret.Scope{Jail: jail1}
	for what, g := range map[string]secret.Grant{
		"to nobody":           {Secret: "A", Delivery: secret.File},
		"to no jail":          {Secret: "A", To: secret.Scope{Jail: "../etc"}, Delivery: secret.File},
		"in no way":           {Secret: "A", To: to},
		"in another way":      {Secret: "A", To: to, Delivery: "env"},
		"a file for hosts":    {Secret: "A", To: to, Delivery: secret.File, Hosts: []string{"a.example"}},
		"no hosts":            {Secret: "A", To: to, Delivery: secret.Inject},
		"all hosts":           {Secret: "A", To: to, Delivery: secret.Inject, Hosts: []string{"*"}},
		"a whole domain":      {Secret: "A", To: to, Delivery: secret.Inject, Hosts: []string{"*.com"}},
		"a star inside":       {Secret: "A", To: to, Delivery: secret.Inject, Hosts: []string{"a.*.example.com"}},
		"upper case":          {Secret: "A", To: to, Delivery: secret.Inject, Hosts: []string{"A.example.com"}},
		"a URL":               {Secret: "A", To: to, Delivery: secret.Inject, Hosts: []string{"https://a.example"}},
		"branches of nothing": {Secret: "A", To: secret.Scope{Run: "r"}, Delivery: secret.File, Branches: true},
		"in the past":         {Secret: "A", To: to, Delivery: secret.File, Expires: &past},
		"control characters":  {Secret: "A", To: secret.Scope{Run: "r\n"}, Delivery: secret.File},
	} {
		if _, err := k.Grant(t.Context(), g); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := k.Grant(t.Context(), secret.Grant{Secret: "B", To: to, Delivery: secret.File}); !errors.Is(err, fault.NotFound) {
		t.Errorf("of no secret: %v", err)
	}
}

func TestEverythingIsRecordedByName(t *testing.T) {
	k := newKept(t)
	k.put("A", "one")
	k.put("B", "two")
	g := k.grant(secret.Grant{Secret: "A", To: secret.Scope{Jail: jail1}, Branches: true})
	k.grant(secret.Grant{Secret: "B", To: secret.Scope{Jail: jail1}})
	k.get(secret.Scope{Jail: jail1}, "A", secret.Use{})
	k.get(secret.Scope{Jail: jail2}, "A", secret.Use{})
	k.expect("use", "stored A", "stored B", "granted A", "granted B", "used A", "refused A")
	if err := k.Branched(t.Context(), jail1, jail2); err != nil {
		t.Fatal(err)
	}
	k.expect("a branch", "granted A")
	if err := k.Revoke(t.Context(), g.ID, "me"); err != nil {
		t.Fatal(err)
	}
	k.expect("revoked", "revoked A", "revoked A")
	if err := errors.Join(k.Rotate(t.Context(), "me"), k.Delete(t.Context(), "B", "me")); err != nil {
		t.Fatal(err)
	}
	k.expect("rotated, deleted", "rotated ", "deleted B", "revoked B")
	if err := k.Delete(t.Context(), "B", "me"); !errors.Is(err, fault.NotFound) {
		t.Errorf("deleted twice: %v", err)
	}
}

func TestWhatCannotBeRecordedDoesNotHappen(t *testing.T) {
	k := newKept(t)
	k.put("A", "one")
	g := k.grant(secret.Grant{Secret: "A", To: secret.Scope{Jail: jail1}})
	full := errors.New("the disk is full")
	k.mu.Lock()
	k.deaf = full
	k.mu.Unlock()
	if v, err := k.Resolve(t.Context(), secret.Scope{Jail: jail1}, "A", secret.Use{Delivery: secret.File}); !errors.Is(err, full) || v.Bytes() != nil {
		t.Errorf("used: %v", err)
	}
	if err := k.Put(t.Context(), "B", []byte("x"), ""); !errors.Is(err, full) {
		t.Errorf("stored: %v", err)
	}
	if _, err := k.Grant(t.Context(), secret.Grant{Secret: "A", To: secret.Scope{Run: "r"}, Delivery: secret.File}); !errors.Is(err, full) {
		t.Errorf("granted: %v", err)
	}
	if err := k.Revoke(t.Context(), g.ID, ""); !errors.Is(err, full) { // which happens all the same
		t.Errorf("revoked: %v", err)
	}
	k.mu.Lock()
	k.deaf = nil
	k.mu.Unlock()
	if got := k.get(secret.Scope{Jail: jail1}, "A", secret.Use{}); got != "-" {
		t.Errorf("after it was revoked it is %q", got)
	}
	if list := k.List(); len(list) != 1 || len(list[0].Grants) != 0 {
		t.Errorf("there is %+v", list)
	}
}

func TestTheListHasNamesOnly(t *testing.T) {
	k := newKept(t)
	k.put("B", canary)
	k.put("A", canary)
	g := k.grant(secret.Grant{Secret: "A", To: secret.Scope{Session: "s"}, By: "me"})
	if list := k.List(); list[0].Used != nil {
		t.Error("it is said to have been used")
	}
	k.get(secret.Scope{Session: "s"}, "A", secret.Use{})
	k.reopen()
	list := k.List()
	if len(list) != 2 || list[0].Name != "A" || list[1].Name != "B" || list[0].Provider != "local" || list[0].Used == nil || list[1].Used != nil ||
		len(list[0].Grants) != 1 || list[0].Grants[0].ID != g.ID || list[0].Grants[0].By != "me" {
		t.Errorf("the list is %+v", list)
	}
	if s := fmt.Sprintf("%+v %#v", list, list); strings.Contains(s, canary) {
		t.Error("a value is in it")
	}
	created := list[0].Created
	k.put("A", "another")
	list = k.List()
	if !list[0].Created.Equal(created) || !list[0].Updated.After(created) || list[0].Used == nil {
		t.Errorf("put again: %+v", list[0])
	}
}

func TestFilesAreThoseOfLiveGrants(t *testing.T) {
	k := newKept(t)
	var told []secret.Scope
	k.changed = func(s secret.Scope) { told = append(told, s) }
	k.put("A", "one")
	k.put("B", "two")
	who := secret.Scope{Jail: jail1, Session: "s"}
	k.grant(secret.Grant{Secret: "B", To: secret.Scope{Jail: jail1}})
	k.grant(secret.Grant{Secret: "A", To: secret.Scope{Session: "s"}})
	k.grant(secret.Grant{Secret: "A", To: secret.Scope{Jail: jail1}}) // one file all the same
	values, err := k.Files(t.Context(), who)
	if err != nil || len(values) != 2 || values[0].Name() != "A" || values[1].Name() != "B" || string(values[1].Bytes()) != "two" {
		t.Errorf("files %v, %v", values, err)
	}
	if len(told) != 3 {
		t.Errorf("told of %v", told)
	}
	told = nil
	k.put("A", "other")
	if len(told) != 2 {
		t.Errorf("of a new value, told %v", told)
	}
	told = nil
	if err := k.Gone(t.Context(), jail1); err != nil || told != nil {
		t.Errorf("of a jail that is gone, told %v, %v", told, err)
	}
	if values, err := k.Files(t.Context(), who); err != nil || len(values) != 1 {
		t.Errorf("files %v, %v", values, err)
	}
}

func TestWhoRevokesIsToldIfTheFileIsStillThere(t *testing.T) {
	k := newKept(t)
	k.put("A", "one")
	g := k.grant(secret.Grant{Secret: "A", To: secret.Scope{Jail: jail1}})
	k.stuck = errors.New("the jail does not answer")
	if _, err := k.Grant(t.Context(), secret.Grant{Secret: "A", To: secret.Scope{Jail: jail2}, Delivery: secret.File}); !errors.Is(err, k.stuck) {
		t.Errorf("Grant = %v", err)
	}
	if err := k.Put(t.Context(), "A", []byte("two"), ""); !errors.Is(err, k.stuck) {
		t.Errorf("Put = %v", err)
	}
	if err := k.Revoke(t.Context(), g.ID, ""); !errors.Is(err, k.stuck) {
		t.Errorf("Revoke = %v", err)
	}
	if err := k.Delete(t.Context(), "A", ""); !errors.Is(err, k.stuck) {
		t.Errorf("Delete = %v", err)
	}
	if list := k.List(); len(list) != 0 { // all of it stands
		t.Errorf("there is %+v", list)
	}
}

// A provider that may be away.
type away struct{ gone bool }

func (*away) Check(string) error { return nil }

func (p *away) Fetch(_ context.Context, path string) ([]byte, error) {
	if p.gone {
		return nil, fault.Newf(fault.Unavailable, "test", path, "nobody there")
	}
	return []byte("value of " + path), nil
}

func TestAProviderThatIsAwayKeepsNothingFromBeingTakenAway(t *testing.T) {
	p := &away{}
	k := newKept(t, func(c *secret.Config) { c.Providers = map[string]secret.Provider{"far": p} })
	k.put("NEAR", "one")
	if err := k.PutReference(t.Context(), "FAR", "far:key", ""); err != nil {
		t.Fatal(err)
	}
	who := secret.Scope{Jail: jail1}
	near := k.grant(secret.Grant{Secret: "NEAR", To: who})
	k.grant(secret.Grant{Secret: "FAR", To: who})
	p.gone = true
	files, err := k.Files(t.Context(), who)
	if len(files) != 2 || files[0].Name() != "FAR" || files[0].Bytes() != nil || string(files[1].Bytes()) != "one" || !errors.Is(err, fault.Unavailable) {
		t.Errorf("files %v, %v", files, err)
	}
	if err := k.Revoke(t.Context(), near.ID, ""); err != nil {
		t.Fatal(err)
	}
	files, err = k.Files(t.Context(), who)
	if len(files) != 1 || files[0].Name() != "FAR" || !errors.Is(err, fault.Unavailable) {
		t.Errorf("files %v, %v", files, err)
	}
	p.gone = false
	files, err = k.Files(t.Context(), who)
	if err != nil || len(files) != 1 || string(files[0].Bytes()) != "value of key" {
		t.Errorf("files %v, %v", files, err)
	}
}

func TestAGrantExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kept{t: t, dir: t.TempDir()}
		var told []secret.Scope
		m := newMemory()
		k.Keeper = secret.NewKeeper(secret.Config{Store: m, Recorder: k, KeyFile: filepath.Join(k.dir, "key"), Changed: func(_ context.Context, s secret.Scope) error { told = append(told, s); return nil }})
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
		if got := k.get(secret.Scope{Jail: jail1}, "A", secret.Use{}); got != "one" {
			t.Errorf("before its time it is %q", got)
		}
		told = nil
		m.fail(errors.New("no database"))
		time.Sleep(time.Second)
		synctest.Wait()
		if got := k.get(secret.Scope{Jail: jail1}, "A", secret.Use{}); got != "-" || len(told) != 1 {
			t.Errorf("after its time it is %q, told %v", got, told)
		}
		m.fail(nil)
		time.Sleep(time.Minute) // what could not be written down then is by now
		synctest.Wait()
		if left, _ := m.Grants(t.Context()); len(left) != 1 || left[0].To.Jail != jail2 {
			t.Errorf("left are %+v", left)
		}
		time.Sleep(10 * time.Hour)
		synctest.Wait()
		if left, _ := m.Grants(t.Context()); len(left) != 0 {
			t.Errorf("left are %+v", left)
		}
	})
}

func TestBranchesGetGrantsOfTheirOwn(t *testing.T) {
	k := newKept(t)
	k.put("A", "one")
	k.put("B", "two")
	first := k.grant(secret.Grant{Secret: "A", To: secret.Scope{Jail: jail1, Session: "s"}, Branches: true})
	k.grant(secret.Grant{Secret: "B", To: secret.Scope{Jail: jail1}})
	const jail3 = id.Jail("j-cccccccccccc")
	if err := errors.Join(k.Branched(t.Context(), jail1, jail2), k.Branched(t.Context(), jail2, jail3)); err != nil {
		t.Fatal(err)
	}
	k.reopen()
	for _, j := range []id.Jail{jail2, jail3} {
		who := secret.Scope{Jail: j, Session: "s"}
		if a, b := k.get(who, "A", secret.Use{}), k.get(who, "B", secret.Use{}); a != "one" || b != "-" {
			t.Errorf("%s has %q and %q", j, a, b)
		}
	}
	if err := k.Gone(t.Context(), jail2); err != nil {
		t.Fatal(err)
	}
	if got := k.get(secret.Scope{Jail: jail3, Session: "s"}, "A", secret.Use{}); got != "one" {
		t.Errorf("the branch of a branch that is gone has %q", got)
	}
	if err := k.Revoke(t.Context(), first.ID, ""); err != nil {
		t.Fatal(err)
	}
	if got := k.get(secret.Scope{Jail: jail3, Session: "s"}, "A", secret.Use{}); got != "-" {
		t.Errorf("once the first is revoked it has %q", got)
	}
}

func TestManyUseAndChangeSecretsAtOnce(t *testing.T) {
	k := newKept(t)
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
						t.Errorf("%s is %q", name, v.Bytes())
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
			t.Errorf("%s has grants left: %+v", s.Name, s.Grants)
		}
	}
}
