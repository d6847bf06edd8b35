package api_test

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"strings"
	"testing"

	"glasshouse/api"
	"glasshouse/api/apitest"
	"glasshouse/api/wire"
	"glasshouse/policy/access"
	"glasshouse/policy/approval"
	"glasshouse/store/storetest"
)

// withBrowsers enables browser logins and push notifications.
func withBrowsers(t *testing.T) func(*api.Options) {
	st, err := storetest.Open(t, "")
	if err != nil {
		t.Fatal(err)
	}
	q, err := approval.New(t.Context(), st.Approvals(), approval.Config{Browsers: approval.BrowserConfig{Store: st.Browsers()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		q.Close()
		st.Close()
	})
	return func(o *api.Options) {
		o.Logins, o.Approvals = &access.Logins{Store: st.Logins()}, q
		o.Addresses = func() []string { return []string{"http://127.0.0.1:8082"} }
	}
}

func TestPushSubscriptionEndsWithLogin(t *testing.T) {
	d := open(t, apitest.New(), withBrowsers(t))
	ours := func(cookie, method, path string, body any) req {
		return req{method: method, path: path, body: body, header: d.ownPage("Cookie", cookie)}
	}
	key, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	asked := wire.SubscribeBrowser{Endpoint: "https://push.example/canary", Keys: wire.BrowserKeys{
		P256dh: base64.RawURLEncoding.EncodeToString(key.PublicKey().Bytes()), Auth: base64.RawURLEncoding.EncodeToString(make([]byte, 16)),
	}}
	phone, other, viewer := d.logIn(access.Operator), d.logIn(access.Operator), d.logIn(access.Viewer)

	var known wire.PushKey
	d.want(200, ours(viewer, "GET", "/push/key", nil), &known)
	if raw, err := base64.RawURLEncoding.DecodeString(known.Key); err != nil || len(raw) != 65 {
		t.Errorf("got subscription key %q", known.Key)
	}
	var made wire.PushBrowser
	d.want(201, ours(phone, "POST", "/push/browsers", asked), &made)
	if made.ID == "" || made.Login == "" || made.Service != "push.example" || made.Name != "a browser" {
		t.Errorf("got subscription %+v", made)
	}
	d.refused(403, ours(viewer, "POST", "/push/browsers", asked))                                                                                       // the role may not answer approvals
	d.refused(409, req{as: access.Operator, method: "POST", path: "/push/browsers", body: asked})                                                       // no browser login
	d.refused(403, req{method: "POST", path: "/push/browsers", body: asked, header: map[string]string{"Cookie": phone, "Sec-Fetch-Site": "same-site"}}) // a page of another origin
	for field, spoil := range map[string]func(*wire.SubscribeBrowser){
		"endpoint": func(b *wire.SubscribeBrowser) { b.Endpoint = "http://169.254.169.254/" }, "keys.auth": func(b *wire.SubscribeBrowser) { b.Keys.Auth = "x" },
	} {
		b := asked
		spoil(&b)
		if p := d.refused(400, ours(phone, "POST", "/push/browsers", b)); p.Field != field {
			t.Errorf("refused for %q, want %q", p.Field, field)
		}
	}
	list := func(cookie string) []wire.PushBrowser {
		var page wire.Page[wire.PushBrowser]
		got := d.want(200, ours(cookie, "GET", "/push/browsers", nil), &page)
		if strings.Contains(string(got.body), "canary") {
			t.Errorf("the response contains the push endpoint: %s", got.body)
		}
		return page.Items
	}
	if got := list(phone); len(got) != 1 || got[0].ID != made.ID {
		t.Errorf("browsers of the login: got %+v", got)
	}
	if got := list(other); len(got) != 0 {
		t.Errorf("browsers of other logins: got %+v", got)
	}
	path := "/push/browsers/" + string(made.ID)
	d.refused(404, ours(other, "DELETE", path, nil))
	var all wire.Page[wire.PushBrowser]
	d.want(200, req{as: access.Admin, method: "GET", path: "/push/browsers"}, &all)
	if len(all.Items) != 1 {
		t.Errorf("administrator got %+v", all.Items)
	}
	d.want(204, ours(phone, "DELETE", path, nil), nil)
	d.refused(404, ours(phone, "DELETE", path, nil))
	d.want(201, ours(phone, "POST", "/push/browsers", asked), &made)
	d.want(204, ours(phone, "POST", "/logout", nil), nil)
	d.want(200, req{as: access.Admin, method: "GET", path: "/push/browsers"}, &all)
	if len(all.Items) != 0 {
		t.Errorf("subscription remains after logout: %+v", all.Items)
	}
	if strings.Contains(d.log.String(), "canary") {
		t.Error("the log contains the push endpoint")
	}
}
