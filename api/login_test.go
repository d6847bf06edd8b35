package api_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"glasshouse/api"
	"glasshouse/api/apitest"
	"glasshouse/api/wire"
	"glasshouse/policy/access"
	"glasshouse/store/storetest"
)

// withLogins enables browser logins.
func withLogins(t testing.TB) func(*api.Options) {
	st, err := storetest.Open(t, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return func(o *api.Options) {
		o.Logins = &access.Logins{Store: st.Logins()}
		o.Addresses = func() []string { return []string{"http://127.0.0.1:8082", "https://glass.example"} }
	}
}

// logIn returns the cookie of a new browser login.
func (d *harness) logIn(role access.Role) string {
	d.t.Helper()
	var l wire.LoginLink
	d.want(201, req{as: access.Admin, method: "POST", path: "/login-links", body: wire.CreateLoginLink{Role: string(role), Label: "a browser"}}, &l)
	got := d.want(200, req{method: "POST", path: "/login", body: wire.LogIn{Code: l.Code}, header: d.ownPage()}, nil)
	c, err := http.ParseSetCookie(got.header.Get("Set-Cookie"))
	if err != nil {
		d.t.Fatal(err)
	}
	return c.Name + "=" + c.Value
}

// ownPage has the headers of a request from a page of the daemon.
func (d *harness) ownPage(more ...string) map[string]string {
	h := map[string]string{"Origin": "http://" + d.tcp, "Sec-Fetch-Site": "same-origin"}
	for i := 0; i < len(more); i += 2 {
		h[more[i]] = more[i+1]
	}
	return h
}

func TestBrowserLoginAndLogout(t *testing.T) {
	d := open(t, apitest.New(), withLogins(t))
	var l wire.LoginLink
	d.want(201, req{local: true, method: "POST", path: "/login-links", body: wire.CreateLoginLink{}}, &l)
	if len(l.URLs) != 2 || l.URLs[0] != "http://127.0.0.1:8082/login#"+l.Code || l.URLs[1] != "https://glass.example/login#"+l.Code {
		t.Fatalf("got links %q", l.URLs)
	}
	var me wire.Me
	got := d.want(200, req{method: "POST", path: "/login", body: wire.LogIn{Code: l.Code}, header: d.ownPage()}, &me)
	set := got.header.Get("Set-Cookie")
	for _, want := range []string{"HttpOnly", "SameSite=Strict", "Path=/"} {
		if !strings.Contains(set, want) {
			t.Errorf("the cookie %q lacks %s", set, want)
		}
	}
	if strings.Contains(set, "Secure") {
		t.Error("the cookie of a connection without TLS is Secure: the browser would not send it")
	}
	if me.Role != "admin" || me.Login == "" {
		t.Errorf("logged in as %+v, want the creator of the link", me)
	}
	cookie, _, _ := strings.Cut(set, ";")
	var again wire.Me
	d.want(200, req{method: "GET", path: "/me", header: d.ownPage("Cookie", cookie)}, &again)
	if again != me {
		t.Errorf("GET /me is %+v, want %+v", again, me)
	}
	d.want(201, req{method: "POST", path: "/jails", body: "{}", header: d.ownPage("Cookie", cookie)}, nil)
	var list wire.Page[wire.Login]
	d.want(200, req{as: access.Admin, method: "GET", path: "/logins"}, &list)
	if len(list.Items) != 1 || list.Items[0].ID != me.Login {
		t.Errorf("got logins %+v", list.Items)
	}
	if log := d.log.String(); strings.Contains(log, l.Code) || strings.Contains(log, cookie) {
		t.Error("a code or cookie is in the log")
	}
	got = d.want(204, req{method: "POST", path: "/logout", header: d.ownPage("Cookie", cookie)}, nil)
	if !strings.Contains(got.header.Get("Set-Cookie"), "Max-Age=0") {
		t.Errorf("logging out sets %q, want the cookie removed", got.header.Get("Set-Cookie"))
	}
	d.refused(401, req{method: "GET", path: "/me", header: d.ownPage("Cookie", cookie)})
	d.refused(409, req{as: access.Admin, method: "POST", path: "/logout"})
}

func TestBehindTLSTheCookieIsSecure(t *testing.T) {
	d := open(t, apitest.New(), withLogins(t), func(o *api.Options) { o.Hosts = []string{"glass.example"} })
	var l wire.LoginLink
	d.want(201, req{as: access.Admin, method: "POST", path: "/login-links", body: "{}"}, &l)
	got := d.want(200, req{method: "POST", path: "/login", body: wire.LogIn{Code: l.Code}, header: map[string]string{"X-Forwarded-Proto": "https", "Host": "glass.example"}}, nil)
	if set := got.header.Get("Set-Cookie"); !strings.Contains(set, "Secure") || !strings.HasPrefix(set, "glasshouse=") {
		t.Errorf("the cookie is %q, want it Secure, with no port in its name", set)
	}
}

func TestLoginCodeIsSingleUse(t *testing.T) {
	d := open(t, apitest.New(), withLogins(t))
	var l wire.LoginLink
	d.want(201, req{as: access.Admin, method: "POST", path: "/login-links", body: "{}"}, &l)
	d.refused(401, req{method: "POST", path: "/login", body: wire.LogIn{Code: l.Code[:len(l.Code)-1]}})
	// A request from another page does not use up the code.
	d.refused(403, req{method: "POST", path: "/login", body: wire.LogIn{Code: l.Code}, header: map[string]string{"Origin": "https://evil.example"}})
	d.refused(403, req{method: "POST", path: "/login", body: wire.LogIn{Code: l.Code}, header: map[string]string{"Sec-Fetch-Site": "same-site"}})
	d.refused(400, req{method: "POST", path: "/login", body: "code=" + l.Code, header: map[string]string{"Content-Type": "application/x-www-form-urlencoded"}})
	d.want(200, req{method: "POST", path: "/login", body: wire.LogIn{Code: l.Code}}, nil)
	p := d.refused(401, req{method: "POST", path: "/login", body: wire.LogIn{Code: l.Code}})
	if p.Remedy == "" {
		t.Errorf("refusal of a used link without a remedy: %+v", p)
	}
	for _, as := range []access.Role{"", access.Viewer, access.Operator} {
		if got := d.do(req{as: as, method: "POST", path: "/login-links", body: "{}"}); got.status/100 == 2 {
			t.Errorf("%q created a link", as)
		}
	}
}

func TestLoginHasPermissionsOfRole(t *testing.T) {
	d := open(t, apitest.New(), withLogins(t))
	viewer, operator := d.logIn(access.Viewer), d.logIn(access.Operator)
	d.refused(403, req{method: "POST", path: "/jails", body: "{}", header: d.ownPage("Cookie", viewer)})
	d.want(200, req{method: "GET", path: "/jails", header: d.ownPage("Cookie", viewer)}, nil)
	d.want(201, req{method: "POST", path: "/jails", body: "{}", header: d.ownPage("Cookie", operator)}, nil)
	d.refused(403, req{method: "GET", path: "/logins", header: d.ownPage("Cookie", operator)})
	d.refused(403, req{method: "POST", path: "/login-links", body: "{}", header: d.ownPage("Cookie", operator)})
	d.refused(400, req{as: access.Admin, method: "POST", path: "/login-links", body: wire.CreateLoginLink{Role: "agent"}})
}

// Other pages can trigger requests with the cookie. None of them may be accepted.
func TestLoginIsRefusedForForeignPages(t *testing.T) {
	d := open(t, apitest.New(), withLogins(t))
	cookie := d.logIn(access.Admin)
	_, port, _ := strings.Cut(d.tcp, ":")
	for name, h := range map[string]map[string]string{
		"another site":                       {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
		"another port of this host":          {"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"},
		"this port by another name":          {"Origin": "http://localhost:" + port, "Sec-Fetch-Site": "cross-site"},
		"a page without origin":              {"Origin": "null"},
		"a form whose browser says little":   {},
		"an address that was typed":          {"Sec-Fetch-Site": "none"},
		"a form of another port, no origin":  {"Sec-Fetch-Site": "same-site"},
		"a name that was bound to this host": {"Host": "evil.example:" + port, "Origin": "http://evil.example:" + port, "Sec-Fetch-Site": "same-origin"},
	} {
		h["Cookie"] = cookie
		if got := d.do(req{method: "POST", path: "/jails", body: "{}", header: h}); got.status != 403 {
			t.Errorf("%s: POST = %d, want 403", name, got.status)
		}
		if got := d.do(req{method: "DELETE", path: "/logins/b-aaaaaaaaaaaa", header: h}); got.status != 403 {
			t.Errorf("%s: DELETE = %d, want 403", name, got.status)
		}
	}
	for name, h := range map[string]map[string]string{
		"an image of another port": {"Sec-Fetch-Site": "same-site"}, "an image of another site": {"Sec-Fetch-Site": "cross-site"},
	} {
		h["Cookie"] = cookie
		d.t.Log(name)
		d.refused(403, req{method: "GET", path: "/jails", header: h})
	}
	// A typed address, and an old browser without fetch metadata, may read.
	d.want(200, req{method: "GET", path: "/jails", header: map[string]string{"Cookie": cookie, "Sec-Fetch-Site": "none"}}, nil)
	// A cookie that another server on this host has set is refused.
	d.refused(401, req{method: "GET", path: "/jails", header: d.ownPage("Cookie", cookie+"; "+cookie[:strings.Index(cookie, "=")]+"=ghb_x")})
	// On the socket, the credentials take precedence over the cookie.
	d.want(200, req{local: true, method: "GET", path: "/jails", header: map[string]string{"Cookie": strings.Replace(cookie, "ghb_", "ghb_A", 1)}}, nil)
}

func TestTerminalNeedsSameOrigin(t *testing.T) {
	d := open(t, apitest.Start(t), withLogins(t))
	j := d.running()
	cookie := d.logIn(access.Operator)
	dial := func(origin string) (*websocket.Conn, *http.Response, error) {
		h := http.Header{"Cookie": {cookie}}
		if origin != "" {
			h.Set("Origin", origin)
		}
		return websocket.Dial(t.Context(), "ws://"+d.tcp+"/jails/"+string(j)+"/terminal?cmd=cat", &websocket.DialOptions{HTTPHeader: h})
	}
	for _, origin := range []string{"", "null", "https://evil.example", "http://127.0.0.1:1"} {
		c, resp, err := dial(origin)
		if err == nil {
			c.CloseNow()
			t.Fatalf("a page of %q got a terminal", origin)
		}
		if resp.StatusCode != 403 {
			t.Errorf("a page of %q: %d, want 403", origin, resp.StatusCode)
		}
	}
	conn, _, err := dial("http://" + d.tcp)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if _, _, err := conn.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A logout ends the terminal.
	d.want(204, req{method: "POST", path: "/logout", header: d.ownPage("Cookie", cookie)}, nil)
	for {
		if _, _, err := conn.Read(t.Context()); err != nil {
			break
		}
	}
}

func TestRemoteLogoutEndsStreams(t *testing.T) {
	jails := apitest.New()
	d := open(t, jails, withLogins(t), func(o *api.Options) { o.Observed = apitest.Watch(t, jails) })
	var j wire.Jail
	d.want(201, req{as: access.Operator, method: "POST", path: "/jails", body: "{}"}, &j)
	cookie := d.logIn(access.Viewer)
	resp := d.send(req{method: "GET", path: "/jails/" + string(j.ID) + "/events", header: d.ownPage("Cookie", cookie, "Accept", "text/event-stream")})
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Fatalf("got stream status %d", resp.StatusCode)
	}
	var list wire.Page[wire.Login]
	d.want(200, req{as: access.Admin, method: "GET", path: "/logins"}, &list)
	d.want(204, req{as: access.Admin, method: "DELETE", path: "/logins/" + string(list.Items[0].ID)}, nil)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buf := make([]byte, 1024)
		for {
			if _, err := resp.Body.Read(buf); err != nil {
				return
			}
		}
	}()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Error("the stream is still open")
	}
	d.refused(401, req{method: "GET", path: "/me", header: d.ownPage("Cookie", cookie)})
}

func TestLoginLinkNeedsAddress(t *testing.T) {
	d := open(t, apitest.New(), withLogins(t), func(o *api.Options) { o.Addresses = func() []string { return nil } })
	if p := d.refused(501, req{as: access.Admin, method: "POST", path: "/login-links", body: "{}"}); p.Remedy == "" {
		t.Errorf("no remedy in %+v", p)
	}
}
