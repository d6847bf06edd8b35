package access_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/policy/access"
	"glasshouse/store"
	"glasshouse/store/storetest"
)

var root = access.Caller{Role: access.Admin, Name: "root", Local: true}

func logins(t *testing.T) (*access.Logins, store.Logins) {
	t.Helper()
	st, err := storetest.Open(t, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return &access.Logins{Store: st.Logins()}, st.Logins()
}

func TestLinkWorksOnce(t *testing.T) {
	ls, _ := logins(t)
	ctx := t.Context()
	_, code, err := ls.Link(ctx, root, access.Operator, "phone")
	if err != nil {
		t.Fatal(err)
	}
	l, secret, err := ls.Redeem(ctx, code)
	if err != nil || l.Name != "phone" || l.Role != access.Operator {
		t.Fatalf("Redeem = %+v, %v; want an operator's login, phone", l, err)
	}
	c, err := ls.Check(ctx, secret)
	if want := (access.Caller{Role: access.Operator, Name: "phone", Login: l.ID}); err != nil || c != want {
		t.Errorf("Check = %+v, %v; want %+v", c, err, want)
	}
	if _, _, err := ls.Redeem(ctx, code); !errors.Is(err, fault.Unauthenticated) {
		t.Errorf("the second use of a link: %v, want unauthenticated", err)
	}
	if err := ls.End(ctx, l.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := ls.Check(ctx, secret); !errors.Is(err, fault.Unauthenticated) {
		t.Errorf("after End: %v, want unauthenticated", err)
	}
}

func TestConcurrentRedeemSucceedsOnce(t *testing.T) {
	ls, _ := logins(t)
	_, code, err := ls.Link(t.Context(), root, access.Admin, "")
	if err != nil {
		t.Fatal(err)
	}
	var in atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if _, _, err := ls.Redeem(t.Context(), code); err == nil {
				in.Add(1)
			} else if !errors.Is(err, fault.Unauthenticated) {
				t.Errorf("Redeem: %v", err)
			}
		})
	}
	wg.Wait()
	all, err := ls.List(t.Context())
	if err != nil || in.Load() != 1 || len(all) != 1 {
		t.Errorf("%d calls succeeded and %d logins exist (%v), want 1", in.Load(), len(all), err)
	}
}

func TestInvalidCodesAreRejected(t *testing.T) {
	ls, st := logins(t)
	ctx := t.Context()
	link, code, err := ls.Link(ctx, root, access.Admin, "")
	if err != nil {
		t.Fatal(err)
	}
	last := code[len(code)-1]
	guesses := []string{"", "ghl_", code[:len(code)-1], code + "A", strings.ToUpper(code), code[:len(code)-1] + string(last^1), link.Hash, "ghl_" + link.Hash, "ghl_" + strings.Repeat("A", 1<<20), "' OR 1=1 --"}
	for _, guess := range guesses {
		if _, _, err := ls.Redeem(ctx, guess); !errors.Is(err, fault.Unauthenticated) {
			t.Errorf("the code %.40q: %v, want unauthenticated", guess, err)
		}
	}
	// An attacker who has read the database has digests only, which must not be accepted.
	l, secret, err := ls.Redeem(ctx, code)
	if err != nil {
		t.Fatal("invalid codes consumed the link:", err)
	}
	kept, err := st.Logins(ctx)
	if err != nil || len(kept) != 1 {
		t.Fatal(kept, err)
	}
	if text := fmt.Sprintf("%+v %+v", kept, l); strings.Contains(text, secret) || strings.Contains(text, code) {
		t.Error("the secret is stored")
	}
	for _, stolen := range []string{l.Hash, "ghb_" + l.Hash, string(l.ID), "", "ghb_", secret + "x", code, strings.Repeat("ghb_", 1<<18)} {
		if _, err := ls.Check(ctx, stolen); !errors.Is(err, fault.Unauthenticated) {
			t.Errorf("the cookie %.40q: %v, want unauthenticated", stolen, err)
		}
	}
	if _, err := ls.Check(ctx, secret); err != nil {
		t.Error(err)
	}
}

func TestLinksAndLoginsExpire(t *testing.T) {
	ls, st := logins(t)
	ctx := t.Context()
	link, code, err := ls.Link(ctx, root, access.Viewer, "")
	if err != nil {
		t.Fatal(err)
	}
	if d := link.Expires.Sub(link.Created); d != 10*time.Minute {
		t.Errorf("a link lasts %s, want ten minutes", d)
	}
	// The store compares the expiry with the creation time of the login.
	if _, err := st.Redeem(ctx, link.Hash, access.Login{ID: "b-late", Hash: "late", Created: link.Expires, Used: link.Expires}); !errors.Is(err, fault.NotFound) {
		t.Errorf("an expired link: %v, want not found", err)
	}
	l, secret, err := ls.Redeem(ctx, code)
	if err != nil {
		t.Fatal(err)
	}
	age := func(d time.Duration) {
		t.Helper()
		if err := st.UseLogin(ctx, l.ID, time.Now().Add(-d)); err != nil {
			t.Fatal(err)
		}
	}
	age(7*24*time.Hour - time.Minute)
	if _, err := ls.Check(ctx, secret); err != nil {
		t.Errorf("used six days ago: %v", err)
	}
	if all, err := ls.List(ctx); err != nil || len(all) != 1 || time.Since(all[0].Used) > time.Hour {
		t.Errorf("the last use is not stored: %v, %v", all, err)
	}
	age(7 * 24 * time.Hour)
	if _, err := ls.Check(ctx, secret); !errors.Is(err, fault.Unauthenticated) {
		t.Errorf("not used for seven days: %v, want unauthenticated", err)
	}
	if all, err := ls.List(ctx); err != nil || len(all) != 0 {
		t.Errorf("an expired login is listed: %v, %v", all, err)
	}
}

func TestLinkRejectsInvalidRoleAndLabel(t *testing.T) {
	ls, _ := logins(t)
	for _, role := range []access.Role{access.Agent, "", "root"} {
		if _, _, err := ls.Link(t.Context(), root, role, ""); !errors.Is(err, fault.Invalid) || fault.FieldOf(err) != "role" {
			t.Errorf("a link for the role %q: %v, want invalid", role, err)
		}
	}
	for _, label := range []string{"a\nb", strings.Repeat("x", 65), "\x1b[2J"} {
		if _, _, err := ls.Link(t.Context(), root, access.Viewer, label); !errors.Is(err, fault.Invalid) {
			t.Errorf("a link for %.20q: %v, want invalid", label, err)
		}
	}
	l, _, err := ls.Link(t.Context(), root, access.Viewer, "")
	if err != nil || l.Name != "root" {
		t.Errorf("the login of a link without a label is %q (%v), want the creator's name", l.Name, err)
	}
}
