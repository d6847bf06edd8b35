package egress_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"glasshouse/policy/egress"
	"glasshouse/policy/egress/egresstest"
)

// followed follows redirects from within the jail, through the explicit proxy or
// transparently, and returns the response of the last server. If keepHost is set, all requests
// have the Host of the first one.
func (j *jail) followed(from string, roots *x509.CertPool, byProxy, keepHost bool) (string, error) {
	t := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true, DisableKeepAlives: true,
		DialContext: func(_ context.Context, network, address string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			// The client knows all addresses, because the jail's DNS would not return them.
			if known := egresstest.Names[host]; len(known) > 0 {
				host = known[0].String()
			} else if _, err := netip.ParseAddr(host); err != nil {
				host = egresstest.Internet
			}
			return j.dial(network, net.JoinHostPort(host, port))
		},
	}
	if byProxy {
		t.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: egresstest.Proxy})
	}
	c := &http.Client{Transport: t, Timeout: 20 * time.Second, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if keepHost {
			req.Host = via[0].URL.Host
		}
		return nil
	}}
	resp, err := c.Get(from)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// A reachable server redirects to servers that are not reachable.
func TestRedirectCannotReachRefusedServer(t *testing.T) {
	w := needsWorld(t)
	w.SetAddrs("shop.example", egresstest.Internet)
	var redirected atomic.Int64
	server := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		code, err := strconv.Atoi(r.FormValue("code"))
		if err != nil {
			fmt.Fprint(rw, "landed")
			return
		}
		redirected.Add(1)
		http.Redirect(rw, r, r.FormValue("to"), code)
	})
	const plain, secure = "8080", "4430"
	w.HTTP(egresstest.Internet+":"+plain, nil, server)
	w.HTTP(egresstest.Internet+":"+secure, &tls.Config{NextProtos: []string{"h2", "http/1.1"}}, server)
	w.HTTP(egresstest.Evil+":"+plain, nil, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprint(rw, egresstest.Reached, r.Host)
	}))
	ca, _ := newCA(t)
	roots := w.Roots.Clone()
	if !roots.AppendCertsFromPEM(ca.PEM()) {
		t.Fatal("cannot parse the CA certificate")
	}
	denied := []string{
		"http://evil.example/", "https://evil.example/", "http://evil.example:" + plain + "/", "//evil.example/",
		"http://shop.example/", "https://shop.example:443/", // other ports of the server
		"http://" + egresstest.Evil + "/", "https://" + egresstest.Evil + "/", "http://" + egresstest.Evil + ":" + plain + "/",
		"http://" + egresstest.Private + "/", "https://" + egresstest.Private + "/", "http://" + egresstest.Metadata + "/", "http://" + egresstest.Host + "/",
		"http://lan.rebind.example/", "http://127.0.0.1/", "http://[::1]/", "http://[::ffff:" + egresstest.Metadata + "]/", "http://2852039166/",
	}
	for _, intercept := range []bool{false, true} {
		j := newJail(t, w, egress.Config{CA: ca, Rules: egress.Rules{Allow: []egress.Rule{
			{Name: "the shop", Host: "shop.example", Ports: []uint16{8080, 4430}, Intercept: intercept}, {Name: "rebinding", Host: "*.rebind.example"},
		}}}, egress.Hurry(300*time.Millisecond, 10*time.Second, time.Second, 0))
		redirected.Store(0)
		want := int64(0)
		for _, origin := range []string{"http://shop.example:" + plain, "https://shop.example:" + secure} {
			for _, code := range []int{301, 302, 303, 307, 308} {
				for i, to := range append(slices.Clone(denied), origin+"/") {
					// All combinations would take minutes.
					byProxy, keepHost := (code+i)%2 == 0, (code+i)%4 < 2
					from := fmt.Sprintf("%s/?code=%d&to=%s", origin, code, url.QueryEscape(to))
					got, err := j.followed(from, roots, byProxy, keepHost)
					want++
					if strings.Contains(got, egresstest.Reached) {
						t.Errorf("%s, intercepted %v, by the proxy %v, with its Host kept %v: %q", from, intercept, byProxy, keepHost, got)
					}
					if to == origin+"/" && got != "landed" {
						t.Errorf("%s, intercepted %v, by the proxy %v: %q, %v, want landed", from, intercept, byProxy, got, err)
					}
				}
			}
		}
		if n := redirected.Load(); n < want {
			t.Errorf("intercepted %v: %d requests were redirected of %d", intercept, n, want)
		}
		refused := 0
		for _, r := range j.all() {
			if !r.Allowed {
				refused++
			}
		}
		t.Logf("intercepted %v: %d redirects, %d refusals", intercept, want, refused)
	}
}
