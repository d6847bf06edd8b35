package store_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glasshouse/id"
	"glasshouse/policy/secret"
)

func secretsComeBack(t *testing.T, where string) {
	s, ctx := open(t, where).Secrets(), t.Context()
	now, later := time.Now().UTC().Round(0), time.Now().Add(time.Hour).UTC().Round(0)
	a := secret.Record{Name: "A", Provider: secret.Local, Sealed: "YWdl", Created: now, Updated: now}
	c := secret.Record{Name: "t-1:c", Provider: secret.Local, Sealed: "YWdl", Created: now, Updated: now,
		Owned: &secret.OwnedSecret{Owner: "t-1", Name: "c", ID: "sec_1", Version: 3, Metadata: map[string]string{"ünï": `"'`}}}
	b := secret.Record{Name: "B", Provider: "vault", Path: "kv/data/app#key", Created: now, Updated: now}
	var grants []secret.Grant
	for i, g := range []secret.Grant{
		{Secret: "A", To: secret.Scope{Jail: "j-aaaaaaaaaaaa"}, Delivery: secret.File, Branches: true, By: "me"},
		{Secret: "B", To: secret.Scope{Session: "s", Run: "r"}, Delivery: secret.Inject, Hosts: []string{"a.example.com"}, Expires: &later},
		{Secret: "A", To: secret.Scope{Capability: "c"}, Delivery: secret.File},
	} {
		g.ID, g.Created = id.NewGrant(), now.Add(time.Duration(i))
		grants = append(grants, g)
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, secrets []secret.Record, grants []secret.Grant) {
		t.Helper()
		gotSecrets, err := s.Secrets(ctx)
		ok(err)
		gotGrants, err := s.Grants(ctx)
		ok(err)
		if d := cmp.Diff(secrets, gotSecrets) + cmp.Diff(grants, gotGrants); d != "" {
			t.Errorf("%s: %s", what, d)
		}
	}
	check("an empty database", nil, nil)
	ok(s.PutSecret(ctx, b))
	ok(s.PutSecret(ctx, a))
	for _, g := range grants {
		ok(s.PutGrant(ctx, g))
	}
	check("put", []secret.Record{a, b}, grants)
	a.Used, a.Updated = &later, later
	ok(s.PutSecret(ctx, a))
	ok(s.Reseal(ctx, map[string]string{"A": "bmV3", "C": "none"}))
	a.Sealed = "bmV3"
	check("changed", []secret.Record{a, b}, grants)
	ok(s.DeleteGrants(ctx, []id.Grant{grants[2].ID, "g-aaaaaaaaaaaa"}))
	check("after deleting a grant", []secret.Record{a, b}, grants[:2])
	ok(s.DeleteSecret(ctx, "A"))
	ok(s.DeleteSecret(ctx, "A"))
	check("after deleting a secret", []secret.Record{b}, grants[1:2])
	ok(s.PutSecret(ctx, c))
	c.Owned.Version, c.Owned.Metadata = 4, nil
	ok(s.PutSecret(ctx, c))
	check("with an owned secret", []secret.Record{b, c}, grants[1:2])
}
