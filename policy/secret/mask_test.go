package secret_test

import (
	"os"
	"strings"
	"testing"

	"glasshouse/id"
	"glasshouse/policy/secret"
)

func TestMaskCoversCurrentAndPastValues(t *testing.T) {
	k := newTestManager(t)
	jid, other := id.NewJail(), id.NewJail()
	ctx := t.Context()
	put := func(name, value string) {
		t.Helper()
		if err := k.Put(ctx, name, []byte(value), "anna"); err != nil {
			t.Fatal(err)
		}
	}
	const first, second, foreign, short = "first-value\n", "second-value", "foreign-value", "abc"
	put("KEY", first)
	put("FOREIGN", foreign)
	put("SHORT", short)
	text := strings.TrimSpace(first) + " " + second + " " + foreign + " " + short
	masked := func(who secret.Scope, names ...string) string { return k.Mask(ctx, who, names).Text(text) }
	check := func(when, got string, want ...string) {
		t.Helper()
		for _, v := range []string{strings.TrimSpace(first), second, foreign, short} {
			hidden := false
			for _, w := range want {
				hidden = hidden || w == v
			}
			if strings.Contains(got, v) == hidden {
				t.Errorf("%s: got %q, want exactly %q masked", when, got, want)
			}
		}
	}
	check("before any grant", masked(secret.Scope{Jail: jid}))
	g, err := k.Grant(ctx, secret.Grant{Secret: "KEY", To: secret.Scope{Jail: jid}, Delivery: secret.File})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Grant(ctx, secret.Grant{Secret: "SHORT", To: secret.Scope{Jail: jid}, Delivery: secret.File}); err != nil {
		t.Fatal(err)
	}
	check("after Grant", masked(secret.Scope{Jail: jid}), strings.TrimSpace(first))
	check("another jail", masked(secret.Scope{Jail: other}))
	check("named", masked(secret.Scope{Jail: other}, "FOREIGN", "NOWHERE"), foreign)

	values, err := k.Files(ctx, secret.Scope{Jail: jid})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range values {
		v.Zero()
	}
	put("KEY", second)
	check("after Put", masked(secret.Scope{Jail: jid}), strings.TrimSpace(first), second)
	if err := k.CopyGrantsToBranch(ctx, jid, other); err != nil {
		t.Fatal(err)
	}
	check("a branch", masked(secret.Scope{Jail: other}), strings.TrimSpace(first), second)
	if err := k.Revoke(ctx, g.ID, "anna"); err != nil {
		t.Fatal(err)
	}
	check("after Revoke", masked(secret.Scope{Jail: jid}), strings.TrimSpace(first), second)
	if err := k.Delete(ctx, "KEY", "anna"); err != nil {
		t.Fatal(err)
	}
	check("after Delete", masked(secret.Scope{Jail: jid}), strings.TrimSpace(first), second)
	if err := k.JailDeleted(ctx, jid); err != nil {
		t.Fatal(err)
	}
	check("after Gone", masked(secret.Scope{Jail: jid}))
}

func TestMaskCoversFetchedValues(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/key", []byte("from-a-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k := newTestManager(t, func(c *secret.Config) { c.Providers = map[string]secret.Provider{"file": secret.Files{Dir: dir}} })
	ctx, jid := t.Context(), id.NewJail()
	if err := k.PutReference(ctx, "KEY", "file:key", "anna"); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Grant(ctx, secret.Grant{Secret: "KEY", To: secret.Scope{Jail: jid}, Delivery: secret.Inject, Hosts: []string{"a.example.com"}}); err != nil {
		t.Fatal(err)
	}
	v, err := k.Resolve(ctx, secret.Scope{Jail: jid}, "KEY", secret.Use{Delivery: secret.Inject, Host: "a.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	v.Zero()
	if got, want := k.Mask(ctx, secret.Scope{Jail: jid}, nil).Text("a from-a-file b"), "a *********** b"; strings.TrimSpace(got) != want {
		t.Errorf("mask of a fetched value: got %q, want %q", got, want)
	}
}
