package store_test

import (
	"errors"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/policy/access"
	"glasshouse/policy/approval"
)

func browsersEnd(t *testing.T, where string) {
	ctx := t.Context()
	s := open(t, where)
	logins := access.Logins{Store: s.Logins()}
	login := func(name string) id.Login {
		t.Helper()
		_, code, err := logins.Link(ctx, access.Caller{Name: name}, access.Operator, "")
		if err != nil {
			t.Fatal(err)
		}
		l, _, err := logins.Redeem(ctx, code)
		if err != nil {
			t.Fatal(err)
		}
		return l.ID
	}
	put := func(l id.Login, endpoint string) (approval.Browser, error) {
		b := approval.Browser{ID: id.NewBrowser(), Login: l, Endpoint: endpoint, Keys: approval.BrowserKeys{P256dh: "p", Auth: "a"}, Created: time.Now().UTC()}
		return b, s.Browsers().PutBrowser(ctx, b, 2)
	}
	ann, bob := login("ann"), login("bob")
	var first approval.Browser
	for _, endpoint := range []string{"https://a/1", "https://a/2", "https://a/2"} { // the second endpoint occurs twice
		b, err := put(ann, endpoint)
		if err != nil {
			t.Fatal(err)
		}
		if first.ID == "" {
			first = b
		}
	}
	if _, err := put(ann, "https://a/3"); !errors.Is(err, fault.Exhausted) {
		t.Errorf("a third browser of a login with a maximum of two: %v", err)
	}
	if _, err := put(bob, "https://b/1"); err != nil {
		t.Fatal(err)
	}
	again := open(t, where).Browsers()
	got, err := again.Browser(ctx, first.ID)
	if first.Name, first.Role = "ann", "operator"; err != nil || got.Endpoint != first.Endpoint || got.Keys != first.Keys || got.Name != first.Name || got.Role != first.Role || !got.Created.Equal(first.Created) {
		t.Errorf("%+v came back as %+v, %v", first, got, err)
	}
	if list, err := again.Browsers(ctx); err != nil || len(list) != 3 {
		t.Errorf("%d browsers, want 3: %v", len(list), err)
	}
	if err := s.Logins().UseLogin(ctx, bob, time.Now().Add(-30*24*time.Hour)); err != nil { // the login has expired
		t.Fatal(err)
	}
	if err := logins.End(ctx, ann); err != nil {
		t.Fatal(err)
	}
	if list, err := again.Browsers(ctx); err != nil || len(list) != 0 {
		t.Errorf("browsers of expired logins: %+v, %v", list, err)
	}
	if _, err := again.Browser(ctx, first.ID); !errors.Is(err, fault.NotFound) {
		t.Errorf("a browser of an expired login: %v", err)
	}
	if err := s.Browsers().DeleteBrowser(ctx, first.ID); err != nil {
		t.Errorf("a missing browser: %v", err)
	}
	private, public, err := s.Browsers().PushKey(ctx, "x", "y")
	if err != nil || private != "x" || public != "y" {
		t.Errorf("the first key: %s %s %v", private, public, err)
	}
	if private, public, err = again.PushKey(ctx, "p", "q"); err != nil || private != "x" || public != "y" {
		t.Errorf("another process has the key %s %s, %v", private, public, err)
	}
}
