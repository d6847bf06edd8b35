package store_test

import (
	"testing"
	"time"

	"glasshouse/policy/access"
)

// loginsComeBack creates a login and checks it from another process.
func loginsComeBack(t *testing.T, where string) {
	ctx := t.Context()
	ls := access.Logins{Store: open(t, where).Logins()}
	_, code, err := ls.Link(ctx, access.Caller{Name: "root"}, access.Operator, "")
	if err != nil {
		t.Fatal(err)
	}
	again := access.Logins{Store: open(t, where).Logins()}
	l, secret, err := again.Redeem(ctx, code)
	if err != nil {
		t.Fatalf("a link of another process: %v", err)
	}
	c, err := ls.Check(ctx, secret)
	if err != nil || c.Login != l.ID || c.Role != access.Operator || c.Name != "root" {
		t.Errorf("Check = %+v, %v", c, err)
	}
	if _, _, err := ls.Redeem(ctx, code); err == nil {
		t.Error("the link works twice")
	}
	list, err := ls.List(ctx)
	if err != nil || len(list) != 1 || !list[0].Used.Equal(l.Used) || list[0].Hash != l.Hash {
		t.Errorf("List = %+v, %v; want %+v", list, err, l)
	}
	if err := ls.Store.DeleteLogins(ctx, time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := ls.End(ctx, l.ID); err != nil {
		t.Errorf("End: %v", err)
	}
	if err := ls.End(ctx, l.ID); err == nil {
		t.Error("DeleteLogin succeeded twice")
	}
}
