package e2b

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glasshouse/fault"
	"glasshouse/policy/egress"
)

func TestRequestAddress(t *testing.T) {
	s := &Server{cfg: ServerConfig{Sandboxes: New(Config{})}}
	const box = "iabcdefghijklmnopqrst"
	for _, c := range []struct {
		url    string
		header map[string]string
		want   address
		is     bool
	}{
		{"http://127.0.0.1:8083/files", map[string]string{"E2b-Sandbox-Id": "any", "E2b-Sandbox-Port": "49983"}, address{"any", 49983, ""}, true},
		{"http://127.0.0.1:8083/files", map[string]string{"E2b-Sandbox-Id": "any"}, address{}, false},
		{"http://127.0.0.1:8083/files", map[string]string{"E2b-Sandbox-Id": "any", "E2b-Sandbox-Port": "65536"}, address{}, false},
		{"http://3000-" + box + ".localhost:8083/a", nil, address{box, 3000, ""}, true},
		{"http://3000-" + strings.ToUpper(box) + ".e2b.example/", nil, address{box, 3000, ""}, true},
		{"http://3000-" + box + "-glasshouse.localhost:8083/a", nil, address{box, 3000, ""}, true},
		{"http://3000-" + box + "-6532622b.e2b.example/", nil, address{box, 3000, ""}, true},
		{"http://127.0.0.1/ports/3000-" + box + "-glasshouse/a", nil, address{box, 3000, "/ports/3000-" + box + "-glasshouse"}, true},
		{"http://127.0.0.1:8083/", map[string]string{"E2b-Sandbox-Id": box + "-client", "E2b-Sandbox-Port": "49983"}, address{box, 49983, ""}, true},
		{"http://3000-x" + box + "-glasshouse.localhost:8083/a", nil, address{}, false},
		{"http://0-" + box + ".localhost/", nil, address{}, false},
		{"http://3000-" + box + "/", nil, address{}, false},
		{"http://3000-../", nil, address{}, false},
		{"http://127.0.0.1/ports/3000-" + box + "/a/b", nil, address{box, 3000, "/ports/3000-" + box}, true},
		{"http://127.0.0.1/ports/3000-" + box, nil, address{box, 3000, "/ports/3000-" + box}, true},
		{"http://127.0.0.1/ports/" + box + "/a", nil, address{}, false},
		{"http://127.0.0.1:8083/sandboxes", nil, address{}, false},
		{"http://127.0.0.1:8083/files?path=a&signature=v1_x", nil, address{}, false},
	} {
		r := httptest.NewRequest("GET", c.url, nil)
		for k, v := range c.header {
			r.Header.Set(k, v)
		}
		if got, is := s.address(r); is != c.is || is && got != c.want {
			t.Errorf("address of %s %v = %+v, %v; want %+v, %v", c.url, c.header, got, is, c.want, c.is)
		}
	}
}

func TestPagination(t *testing.T) {
	now := time.Now()
	var all []position
	for i := range 10 {
		all = append(all, position{now.Add(time.Duration(i/2) * time.Second), fmt.Sprint("i", i)}) // two started at the same time
	}
	for _, newest := range []bool{false, true} {
		var seen []string
		token := ""
		for n := 0; n == 0 || token != ""; n++ {
			w := httptest.NewRecorder()
			q := url.Values{"limit": {"3"}}
			if token != "" {
				q.Set("nextToken", token)
			}
			r := request{Request: httptest.NewRequest("GET", "/?"+q.Encode(), nil), w: w}
			left := slices.DeleteFunc(slices.Clone(all), func(p position) bool { return n > 0 && p.id == "i5" }) // removed in the meantime
			got, err := page(r, left, newest, func(p position) position { return p })
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range got {
				seen = append(seen, p.id)
			}
			token = w.Header().Get("X-Next-Token")
		}
		want := []string{"i0", "i1", "i2", "i3", "i4", "i6", "i7", "i8", "i9"}
		if newest {
			want = []string{"i9", "i8", "i7", "i6", "i4", "i3", "i2", "i1", "i0"}
		}
		if diff := cmp.Diff(want, seen); diff != "" {
			t.Errorf("newest first %v:\n%s", newest, diff)
		}
	}
}

func TestReadMetadata(t *testing.T) {
	twice := url.Values{url.PathEscape("a b"): {url.PathEscape("c&d=é%")}}.Encode()
	got, err := readMetadata(url.Values{"metadata": {twice}})
	if err != nil || got["a b"] != "c&d=é%" || len(got) != 1 {
		t.Errorf("metadata of %q = %q, %v", twice, got, err)
	}
	if got, err := readMetadata(url.Values{"metadata": {"user=abc&app=prod"}}); err != nil || got["user"] != "abc" || got["app"] != "prod" {
		t.Errorf("metadata escaped once = %q, %v", got, err)
	}
	if _, err := readMetadata(url.Values{"metadata": {"a=%zz"}}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("malformed metadata = %v, want invalid", err)
	}
}

// The operator's list of hosts replaces the Internet, and clients cannot extend it.
func TestReachLimitsEgressRules(t *testing.T) {
	no := false
	all := []string{"0.0.0.0/0"}
	for name, c := range map[string]struct {
		reach []string
		b     Sandbox
		want  []string // host and Internet, which permits all ports
		bad   bool
	}{
		"no list":                  {nil, Sandbox{Network: Network{AllowOut: []string{"a.example"}, DenyOut: all}, Internet: &no}, []string{"a.example true", "0.0.0.0/0 false", "::/0 false"}, false},
		"the list":                 {[]string{"*.example", "10.1.0.0/16"}, Sandbox{}, []string{"*.example false", "10.1.0.0/16 false"}, false},
		"an empty list":            {[]string{}, Sandbox{}, nil, false},
		"no Internet":              {[]string{"a.example"}, Sandbox{Internet: &no}, nil, false},
		"a listed name":            {[]string{"*.Example"}, Sandbox{Network: Network{AllowOut: []string{"A.example"}, DenyOut: all}, Internet: &no}, []string{"a.example false", "0.0.0.0/0 false", "::/0 false"}, false},
		"a listed address":         {[]string{"10.1.0.0/16"}, Sandbox{Network: Network{AllowOut: []string{"10.1.2.3"}}, Internet: &no}, []string{"10.1.2.3 false"}, false},
		"another name":             {[]string{"*.example"}, Sandbox{Network: Network{AllowOut: []string{"example.org"}}, Internet: &no}, nil, true},
		"a name that ends alike":   {[]string{"*.example"}, Sandbox{Network: Network{AllowOut: []string{"anexample"}}, Internet: &no}, nil, true},
		"an address behind a name": {[]string{"*"}, Sandbox{Network: Network{AllowOut: []string{"10.1.2.3"}}, Internet: &no}, nil, true},
		"a larger prefix":          {[]string{"10.1.0.0/16"}, Sandbox{Network: Network{AllowOut: []string{"10.0.0.0/8"}}, Internet: &no}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			rules := c.b.rules(c.reach)
			for _, r := range rules.Allow {
				got = append(got, fmt.Sprintf("%s %v", r.Host, r.Internet))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if err := c.b.Network.reachable(c.reach); (fault.KindOf(err) == fault.Invalid) != c.bad {
				t.Errorf("the check of the request = %v, want an error: %t", err, c.bad)
			}
			p, err := egress.New(egress.Config{Rules: rules})
			if err != nil {
				t.Fatal(err)
			}
			p.Close(t.Context())
		})
	}
}

func TestEgressRuleOrder(t *testing.T) {
	no := false
	n := Network{AllowOut: []string{"API.example.com", "8.8.8.8"}, DenyOut: []string{"0.0.0.0/0"}}
	hosts := func(b Sandbox) (list []string) {
		for _, r := range b.rules(nil).Allow {
			list = append(list, fmt.Sprintf("%s %v %v", r.Host, r.Deny, r.Internet))
		}
		return list
	}
	open := []string{"* false true", "0.0.0.0/0 false true", "::/0 false true"}
	for _, c := range []struct {
		b    Sandbox
		want []string
	}{
		{Sandbox{}, open},
		{Sandbox{Internet: &no}, nil},
		{Sandbox{Network: n}, append([]string{"api.example.com false true", "8.8.8.8 false true", "0.0.0.0/0 true false", "::/0 true false"}, open...)},
	} {
		if diff := cmp.Diff(c.want, hosts(c.b)); diff != "" {
			t.Error(diff)
		}
		p, err := egress.New(egress.Config{Rules: c.b.rules(nil)})
		if err != nil {
			t.Fatal(err)
		}
		p.Close(t.Context())
	}
	for _, bad := range []Network{
		{AllowOut: []string{"example.com"}}, {DenyOut: []string{"example.com"}}, {AllowOut: []string{"http://x/"}, DenyOut: n.DenyOut},
		{Rules: map[string][]Rule{"*": {{}}}}, {Rules: map[string][]Rule{"a.example": {{&Transform{map[string]string{"a b": ""}}}}}},
		{Rules: map[string][]Rule{"a.example": {{&Transform{map[string]string{"X": "a\nb"}}}}}}, {Proxy: &Proxy{}},
		{Rules: map[string][]Rule{"a.example": {{&Transform{map[string]string{"X": "Bearer ${e2b.identity.tokens.key}"}}}}}},
	} {
		if err := bad.check(); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%+v = %v, want invalid", bad, err)
		}
	}
}

func FuzzReadToken(f *testing.F) {
	f.Add(position{time.Unix(1, 2), "iabc"}.token())
	f.Add("")
	f.Add("MjAyNi0xMS0yMlQxNDo0NjoyMloX18")
	f.Fuzz(func(t *testing.T, token string) {
		p, err := readToken(token)
		if err == nil {
			again, err := readToken(p.token())
			if err != nil || again.compare(p) != 0 {
				t.Errorf("token %q = %+v, formatted and parsed again %+v, %v", token, p, again, err)
			}
		} else if fault.KindOf(err) != fault.Invalid {
			t.Errorf("%q = %v, want invalid", token, err)
		}
	})
}

func FuzzParseAddress(f *testing.F) {
	f.Add("3000-iabcdefghijklmnopqrst")
	f.Add("-")
	f.Fuzz(func(t *testing.T, label string) {
		if a, ok := parseAddress(label); ok && (!validID(a.sandbox) || a.port < 1 || a.port > 65535) {
			t.Errorf("%q = %+v", label, a)
		}
	})
}

func TestIDsAreValidAndDistinct(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		b := newID()
		if !validID(b) || seen[b] {
			t.Fatalf("newID() = %q: invalid or seen before", b)
		}
		seen[b] = true
	}
}

// Clients parse a response without a body as JSON unless it has a Content-Length, even if part
// of their request was not read.
func TestEmptyResponseHasContentLength(t *testing.T) {
	for _, status := range []int{http.StatusAccepted, http.StatusNoContent} {
		h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { WriteJSON(w, status, nil) })
		s := httptest.NewUnstartedServer(nil)
		s.Config = NewHTTPServer(h, slog.New(slog.DiscardHandler))
		s.Start()
		r, err := http.NewRequestWithContext(t.Context(), "POST", s.URL, io.MultiReader(strings.NewReader("{}"))) // in pieces
		if err != nil {
			t.Fatal(err)
		}
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		a.Body.Close()
		if said := a.Header.Get("Content-Length"); a.StatusCode != status || len(a.TransferEncoding) > 0 || status != http.StatusNoContent && said != "0" {
			t.Errorf("%d: sent in %v, Content-Length %q", a.StatusCode, a.TransferEncoding, said)
		}
		s.Close()
	}
}
