package access_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/access"
)

func TestRoleAllows(t *testing.T) {
	all := []access.Role{access.Admin, access.Operator, access.Viewer, access.Agent, "", "root"}
	for have, want := range map[access.Role]string{
		access.Admin:    "admin operator viewer agent",
		access.Operator: "operator viewer",
		access.Viewer:   "viewer",
		access.Agent:    "agent",
		"":              "",
		"root":          "",
	} {
		var got []string
		for _, need := range all {
			if have.Allows(need) {
				got = append(got, string(need))
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q allows %v, want %q", have, got, want)
		}
	}
	for _, s := range []string{"admin", "operator", "viewer", "agent"} {
		if r, err := access.ParseRole(s); err != nil || string(r) != s {
			t.Errorf("ParseRole(%q) = %q, %v", s, r, err)
		}
	}
	for _, s := range []string{"", "root", "Admin", "admin "} {
		if _, err := access.ParseRole(s); !errors.Is(err, fault.Invalid) || fault.FieldOf(err) != "role" {
			t.Errorf("ParseRole(%q) = %v, want invalid role", s, err)
		}
	}
}

func TestContextWithoutCaller(t *testing.T) {
	if c := access.CallerOf(t.Context()); c.Role.Allows(access.Viewer) || c.Local {
		t.Errorf("a context without a caller has %+v", c)
	}
	want := access.Caller{Role: access.Viewer, Name: "ci"}
	if got := access.CallerOf(access.WithCaller(t.Context(), want)); got != want {
		t.Errorf("CallerOf = %+v, want %+v", got, want)
	}
}

// one is a Store for a single token. ByHash returns it for every hash.
type one struct {
	token *access.Token
	err   error
}

func (o *one) Add(_ context.Context, t access.Token) error { o.token = &t; return o.err }

func (o *one) ByHash(_ context.Context, hash string) (access.Token, error) {
	if o.err != nil {
		return access.Token{}, o.err
	}
	if o.token == nil {
		return access.Token{}, fault.Newf(fault.NotFound, "", "", "none")
	}
	return *o.token, nil // regardless of the hash, so Check must compare it
}

func (o *one) ByID(ctx context.Context, t id.Token) (access.Token, error) {
	got, err := o.ByHash(ctx, "")
	if err == nil && got.ID != t {
		return access.Token{}, fault.Newf(fault.NotFound, "", "", "none")
	}
	return got, err
}

func (o *one) SetQuota(ctx context.Context, t id.Token, c access.QuotaChange) (access.Token, error) {
	got, err := o.ByID(ctx, t)
	if err == nil {
		got.Quota = c.Apply(got.Quota)
		o.token.Quota = got.Quota
	}
	return got, err
}

func (o *one) List(context.Context) ([]access.Token, error) {
	if o.token == nil {
		return nil, o.err
	}
	return []access.Token{*o.token}, o.err
}

func (o *one) Delete(context.Context, id.Token) error { o.token = nil; return o.err }

func TestCheckVerifiesHash(t *testing.T) {
	s := &one{}
	ts := access.Tokens{Store: s}
	_, secret, err := ts.Create(t.Context(), "ci", access.Viewer, nil, access.Quota{})
	if err != nil {
		t.Fatal(err)
	}
	if c, err := ts.Check(t.Context(), secret); err != nil || c.Role != access.Viewer || c.Local {
		t.Errorf("Check = %+v, %v", c, err)
	}
	for _, bad := range []string{"", "gh_", secret[:len(secret)-1], secret + "a", strings.ToUpper(secret), " " + secret, "gh_" + strings.Repeat("a", 1<<20)} {
		if _, err := ts.Check(t.Context(), bad); !errors.Is(err, fault.Unauthenticated) {
			t.Errorf("Check(%.20q) = %v, want unauthenticated", bad, err)
		}
	}
	s.err = errors.New("the disk is full")
	if _, err := ts.Check(t.Context(), secret); err == nil || errors.Is(err, fault.Unauthenticated) {
		t.Errorf("Check with a broken store = %v; want the error of the store", err)
	}
}

func TestTokensExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := access.Tokens{Store: &one{}}
		soon := time.Now().Add(30 * time.Millisecond)
		_, secret, err := ts.Create(t.Context(), "ci", access.Viewer, &soon, access.Quota{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ts.Check(t.Context(), secret); err != nil {
			t.Errorf("before the expiry: %v", err)
		}
		time.Sleep(time.Until(soon) + time.Millisecond)
		if _, err := ts.Check(t.Context(), secret); !errors.Is(err, fault.Unauthenticated) || !strings.Contains(err.Error(), "expired") {
			t.Errorf("after the expiry: %v, want expired", err)
		}
		if _, _, err := ts.Create(t.Context(), "ci", access.Viewer, &soon, access.Quota{}); fault.FieldOf(err) != "expires_at" {
			t.Errorf("Create with an expiry in the past = %v", err)
		}
	})
}

// counted counts reads of tokens.
type counted struct {
	access.Store
	reads int
	read  func() // called after a read; may be nil
}

func (c *counted) ByHash(ctx context.Context, hash string) (access.Token, error) {
	c.reads++
	t, err := c.Store.ByHash(ctx, hash)
	if c.read != nil {
		c.read()
	}
	return t, err
}

func (c *counted) ByID(ctx context.Context, t id.Token) (access.Token, error) {
	c.reads++
	return c.Store.ByID(ctx, t)
}

func TestQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, remember := range []time.Duration{0, 2 * time.Second} {
			shared := &one{}
			s := &counted{Store: shared}
			ts := access.Tokens{Store: s, Remember: remember}
			want := access.Quota{Jails: 3, Memory: 8 << 30}
			token, secret, err := ts.Create(t.Context(), "ci", access.Operator, nil, want)
			if err != nil || token.Quota != want {
				t.Fatalf("Create = %+v, %v, want quota %+v", token, err, want)
			}
			check := func(what string, reads int, want access.Quota) {
				t.Helper()
				s.reads = 0
				got, err := ts.ByID(t.Context(), token.ID)
				if err != nil || got.Quota != want || s.reads != reads {
					t.Errorf("%s: ByID = %+v, %v after %d reads, want quota %+v after %d", what, got, err, s.reads, want, reads)
				}
			}
			if _, err := ts.Check(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
			check("of an authenticated token", 0, want)
			want.Disk = 50 << 30
			if got, err := ts.SetQuota(t.Context(), token.ID, access.QuotaChange{Disk: &want.Disk}); err != nil || got.Quota != want {
				t.Errorf("SetQuota = %+v, %v, want quota %+v", got, err, want)
			}
			check("changed here", 1, want)
			was := want
			want.Jails = 1
			shared.token.Quota = want // another daemon changes it
			check("changed elsewhere", 0, was)
			if remember > 0 {
				time.Sleep(remember)
				check("changed elsewhere, later", 1, want)
			}
			if _, err := ts.SetQuota(t.Context(), "t-unknown", access.QuotaChange{}); !errors.Is(err, fault.NotFound) {
				t.Errorf("SetQuota of an unknown token = %v, want not found", err)
			}
			if _, err := ts.ByID(t.Context(), "t-unknown"); !errors.Is(err, fault.NotFound) {
				t.Errorf("ByID of an unknown token = %v, want not found", err)
			}
			for field, bad := range map[string]access.Quota{"quota.jails": {Jails: -1}, "quota.memory_bytes": {Memory: -1}, "quota.disk_bytes": {Disk: -1}} {
				_, err := ts.SetQuota(t.Context(), token.ID, access.QuotaChange{Jails: &bad.Jails, Memory: &bad.Memory, Disk: &bad.Disk})
				_, _, cerr := ts.CreateKey(t.Context(), "ci", nil, bad)
				if fault.FieldOf(err) != field || fault.FieldOf(cerr) != field {
					t.Errorf("%+v: SetQuota = %v, CreateKey = %v, want errors about %s", bad, err, cerr, field)
				}
			}
		}
	})
}

func TestRememberedTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &one{}
		s := &counted{Store: shared}
		ts := access.Tokens{Store: s, Remember: 2 * time.Second}
		soon := time.Now().Add(time.Second)
		token, secret, err := ts.Create(t.Context(), "ci", access.Viewer, &soon, access.Quota{})
		if err != nil {
			t.Fatal(err)
		}
		check := func(what string, reads int, want bool) {
			t.Helper()
			s.reads = 0
			c, err := ts.Check(t.Context(), secret)
			if ok := err == nil && c.Token == token.ID; ok != want || !ok && !errors.Is(err, fault.Unauthenticated) || s.reads != reads {
				t.Errorf("%s: Check = %+v, %v after %d reads, want success: %v after %d", what, c, err, s.reads, want, reads)
			}
		}
		check("the first time", 1, true)
		check("the second time", 0, true)
		if _, err := ts.Check(t.Context(), secret+"a"); !errors.Is(err, fault.Unauthenticated) {
			t.Errorf("another secret: %v, want unauthenticated", err)
		}
		time.Sleep(1100 * time.Millisecond)
		check("after its expiry", 0, false)

		token, secret, err = ts.Create(t.Context(), "ci", access.Viewer, nil, access.Quota{})
		if err != nil {
			t.Fatal(err)
		}
		check("a new token", 1, true)
		shared.token = nil // another daemon revokes it
		check("revoked elsewhere", 0, true)
		time.Sleep(2 * time.Second)
		check("revoked elsewhere, later", 1, false)

		token, secret, err = ts.Create(t.Context(), "ci", access.Viewer, nil, access.Quota{})
		if err != nil {
			t.Fatal(err)
		}
		check("another token", 1, true)
		if err := ts.Revoke(t.Context(), token.ID); err != nil {
			t.Fatal(err)
		}
		check("revoked here", 1, false)

		// It is revoked while it is read.
		token, secret, err = ts.Create(t.Context(), "ci", access.Viewer, nil, access.Quota{})
		if err != nil {
			t.Fatal(err)
		}
		s.read = func() {
			s.read = nil
			if err := ts.Revoke(t.Context(), token.ID); err != nil {
				t.Error(err)
			}
		}
		check("read before the revocation", 1, true)
		check("the next time", 1, false)
	})
}

func TestFirstAfterCrash(t *testing.T) {
	s := &one{err: errors.New("power failure")}
	ts := access.Tokens{Store: s}
	file := filepath.Join(t.TempDir(), "token")
	s.token = nil
	if _, err := (&access.Tokens{Store: &failingAdd{}}).First(t.Context(), file); err == nil {
		t.Fatal("First with a failing store returned no error")
	}
	lost, _ := os.ReadFile(file)
	s.err = nil
	if made, err := ts.First(t.Context(), file); err != nil || !made {
		t.Fatalf("First after the crash = %v, %v", made, err)
	}
	secret, _ := os.ReadFile(file)
	if string(secret) == string(lost) {
		t.Error("the file still has the token that was not stored")
	}
	if c, err := ts.Check(t.Context(), strings.TrimSpace(string(secret))); err != nil || c.Role != access.Admin {
		t.Errorf("Check = %+v, %v; want an admin", c, err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(file), ".token-*")); len(left) > 0 {
		t.Errorf("temporary files remain: %v", left)
	}
	if _, err := (&access.Tokens{Store: &one{}}).First(t.Context(), "/no/such/dir/token"); err == nil {
		t.Error("First in a missing directory returned no error")
	}
}

// failingAdd is a Store whose Add fails.
type failingAdd struct{ one }

func (*failingAdd) Add(context.Context, access.Token) error { return errors.New("power failure") }

func TestPeers(t *testing.T) {
	me := os.Geteuid()
	for _, c := range []struct {
		peer  access.Peer
		group string
		want  access.Role
	}{
		{access.Peer{UID: 0}, "", access.Admin},
		{access.Peer{UID: me}, "", access.Admin},
		{access.Peer{UID: 12345, GID: 77}, "", ""},
		{access.Peer{UID: 12345, GID: 77}, "77", access.Operator},
		{access.Peer{UID: 12345, GID: 1, Groups: []int{5, 77}}, "77", access.Operator},
		{access.Peer{UID: 12345, GID: 78}, "77", ""},
		{access.Peer{UID: 12345, GID: 0}, "root", access.Operator},
		{access.Peer{UID: 12345, GID: 0}, "no-such-group", ""},
	} {
		got, err := access.Peers{Group: c.group}.Caller(c.peer)
		if got.Role != c.want || (c.want == "") != errors.Is(err, fault.Denied) {
			t.Errorf("%+v with group %q is %q, %v; want %q", c.peer, c.group, got.Role, err, c.want)
		}
		if err != nil && fault.RemedyOf(err) == "" {
			t.Errorf("%+v is refused without a remedy", c.peer)
		}
	}
}

func TestPeerOf(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p, err := access.PeerOf(s)
	if err != nil || p.PID != os.Getpid() || p.UID != os.Geteuid() || p.GID != os.Getegid() {
		t.Errorf("PeerOf = %+v, %v; want this process", p, err)
	}
	left, right := net.Pipe()
	defer left.Close()
	defer right.Close()
	if _, err := access.PeerOf(left); !errors.Is(err, fault.Unsupported) {
		t.Errorf("PeerOf a pipe = %v, want unsupported", err)
	}
}

func TestKeysAndTokensAreNotInterchangeable(t *testing.T) {
	s := &one{}
	ts := access.Tokens{Store: s}
	_, key, err := ts.CreateKey(t.Context(), "ci", nil, access.Quota{})
	if err != nil {
		t.Fatal(err)
	}
	if hexed, ok := strings.CutPrefix(key, "e2b_"); !ok || len(hexed) != 40 || strings.Trim(hexed, "0123456789abcdef") != "" {
		t.Errorf("the key %q does not have the format that clients expect", key)
	}
	if c, err := ts.CheckKey(t.Context(), key); err != nil || c.Role != access.Operator || c.Token == "" {
		t.Errorf("CheckKey = %+v, %v", c, err)
	}
	if c, err := ts.Check(t.Context(), key); !errors.Is(err, fault.Unauthenticated) {
		t.Errorf("a key as a token = %+v, %v; want unauthenticated", c, err)
	}
	_, token, err := ts.Create(t.Context(), "ci", access.Admin, nil, access.Quota{})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{token, "", "e2b_", key + "0", strings.ToUpper(key)} {
		if c, err := ts.CheckKey(t.Context(), bad); !errors.Is(err, fault.Unauthenticated) {
			t.Errorf("the key %.20q = %+v, %v; want unauthenticated", bad, c, err)
		}
	}
}
