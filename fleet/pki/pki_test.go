package pki_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/fleet/pki"
)

const one, two = "aaaaaaaaaaaaaaaaaaaaaaaa11", "bbbbbbbbbbbbbbbbbbbbbbbb22"

// first creates a fleet with one node, which exists for some time.
func first(t *testing.T) *pki.Identity {
	t.Helper()
	id, err := pki.Init(t.TempDir(), one, time.Now().Add(-60*24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	request, err := id.Request()
	if err != nil {
		t.Fatal(err)
	}
	cert, err := id.Issuer().Issue(request, one, time.Now())
	if err == nil {
		err = id.Replace(cert)
	}
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// join gives another node an identity.
func join(t *testing.T, issuer *pki.Authority, node string, now time.Time) *pki.Identity {
	t.Helper()
	key, request, err := pki.NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	cert, err := issuer.Issue(request, node, now)
	if err != nil {
		t.Fatal(err)
	}
	id, err := pki.Create(t.TempDir(), key, cert, issuer.Certificate())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// serve starts a server of a node, which answers with the ID of its client.
func serve(t *testing.T, id *pki.Identity, now time.Time) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer, err := id.Peer(r.TLS, now, 0)
		if err != nil {
			w.WriteHeader(http.StatusUnauthorized)
			io.WriteString(w, err.Error())
			return
		}
		io.WriteString(w, peer)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Listener = tls.NewListener(s.Listener, id.Server())
	s.Start()
	s.URL = strings.Replace(s.URL, "http:", "https:", 1)
	t.Cleanup(s.Close)
	return s
}

func get(s *httptest.Server, c *tls.Config) (status int, text string, err error) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}}
	r, err := client.Get(s.URL)
	if err != nil {
		return 0, "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return r.StatusCode, string(b), err
}

func TestNodesIdentifyThemselves(t *testing.T) {
	a := first(t)
	b := join(t, a.Issuer(), two, time.Now())
	s := serve(t, a, time.Now())
	if status, text, err := get(s, b.Client(one)); err != nil || status != 200 || text != two {
		t.Errorf("the server saw %d %q, %v, want node %s", status, text, err, two)
	}
	// A node is not taken for another one.
	if _, _, err := get(s, b.Client(two)); err == nil {
		t.Error("a connection to node two reached node one")
	}
	// Of another fleet.
	other := join(t, first(t).Issuer(), two, time.Now())
	if _, _, err := get(s, other.Client(one)); err == nil {
		t.Error("a node of another fleet accepted the server")
	}
	strange := other.Client(one)
	strange.InsecureSkipVerify = true
	if status, text, err := get(s, strange); err != nil || status != 401 {
		t.Errorf("a node of another fleet got %d %q, %v, want 401", status, text, err)
	}
	strange.GetClientCertificate = nil
	if status, text, err := get(s, strange); err != nil || status != 401 || !strings.Contains(text, "certificate of a node is required") {
		t.Errorf("a client without certificate got %d %q, %v, want 401", status, text, err)
	}
}

func TestExpiredCertificates(t *testing.T) {
	a := first(t)
	now := time.Now()
	old := join(t, a.Issuer(), two, now.Add(-48*time.Hour))
	s := serve(t, a, now)
	if status, text, err := get(s, old.Client(one)); err != nil || status != 401 || !strings.Contains(text, "expired") {
		t.Errorf("a node with an expired certificate got %d %q, %v, want 401 and the reason", status, text, err)
	}
	if node, err := pki.Verify(old.Certificate(), a.Authority(), now, pki.Grace); err != nil || node != two {
		t.Errorf("Verify within the grace = %q, %v, want %s", node, err, two)
	}
	if _, err := pki.Verify(old.Certificate(), a.Authority(), now.Add(31*24*time.Hour), pki.Grace); !errors.Is(err, fault.Unauthenticated) || fault.RemedyOf(err) == "" {
		t.Errorf("Verify after the grace = %v, want unauthenticated with a remedy", err)
	}
	// Clocks that differ by a minute are no reason to refuse a node.
	fast := join(t, a.Issuer(), two, now.Add(time.Minute))
	if _, err := pki.Verify(fast.Certificate(), a.Authority(), now, 0); err != nil {
		t.Errorf("Verify with a clock that is a minute slow = %v, want success", err)
	}
	if _, err := pki.Verify(join(t, a.Issuer(), two, now.Add(time.Hour)).Certificate(), a.Authority(), now, 0); !errors.Is(err, fault.Unauthenticated) {
		t.Errorf("Verify of a certificate of the future = %v, want unauthenticated", err)
	}
}

func TestJoiningVerifiesBeforeItSends(t *testing.T) {
	a := first(t)
	s := serve(t, a, time.Now())
	if status, _, err := get(s, pki.Joining(pki.Fingerprint(a.Authority()), time.Now)); err != nil || status != 401 {
		t.Errorf("joining with the right fingerprint = %d, %v, want a response", status, err)
	}
	_, _, err := get(s, pki.Joining(pki.Fingerprint(first(t).Authority()), time.Now))
	if !errors.Is(err, fault.Unauthenticated) || fault.RemedyOf(err) == "" {
		t.Errorf("joining with another fingerprint = %v, want unauthenticated with a remedy", err)
	}
	plain := httptest.NewUnstartedServer(http.NotFoundHandler())
	plain.Config.ErrorLog = log.New(io.Discard, "", 0)
	plain.StartTLS()
	defer plain.Close()
	if _, _, err := get(plain, pki.Joining(pki.Fingerprint(a.Authority()), time.Now)); !errors.Is(err, fault.Unauthenticated) {
		t.Errorf("joining at a server that is no node = %v, want unauthenticated", err)
	}
}

func TestIdentityIsStored(t *testing.T) {
	dir := t.TempDir()
	if _, err := pki.Open(dir); !errors.Is(err, fault.NotFound) || !strings.Contains(fault.RemedyOf(err), "node join") {
		t.Errorf("Open of an empty directory = %v, want not found and how to join", err)
	}
	a, err := pki.Init(dir, one, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pki.Init(dir, one, time.Now()); !errors.Is(err, fault.Conflict) {
		t.Errorf("second Init = %v, want conflict", err)
	}
	b, err := pki.Open(dir)
	if err != nil || b.Issuer() == nil || !b.Certificate().Equal(a.Certificate()) {
		t.Fatalf("Open = %+v, %v, want the same identity, which issues certificates", b, err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("file %s has mode %v, %v, want 0600", f.Name(), info.Mode(), err)
		}
	}
	for _, name := range []string{"node.key", "node.pem", "authority.key", "authority.pem"} {
		file := filepath.Join(dir, name)
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, data[:len(data)/2], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := pki.Open(dir); !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("Open with half of %s = %v, want invalid and the name of the file", name, err)
		}
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := pki.Open(dir); err != nil {
		t.Errorf("Open of the repaired files = %v", err)
	}
}

func TestRenewal(t *testing.T) {
	a := first(t)
	now := time.Now()
	b := join(t, a.Issuer(), two, now)
	for after, want := range map[time.Duration]bool{0: false, 7 * time.Hour: false, 9 * time.Hour: true, 30 * time.Hour: true} {
		if got := b.Due(now.Add(after)); got != want {
			t.Errorf("Due after %v = %v, want %v", after, got, want)
		}
	}
	request, err := b.Request()
	if err != nil {
		t.Fatal(err)
	}
	cert, err := a.Issuer().Issue(request, two, now.Add(9*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Replace(cert); err != nil || b.Due(now.Add(9*time.Hour)) {
		t.Errorf("Replace = %v, and renewal is due: %v, want a new certificate", err, b.Due(now.Add(9*time.Hour)))
	}
	foreign := join(t, a.Issuer(), two, now).Certificate()
	if err := b.Replace(foreign); !errors.Is(err, fault.Invalid) || !b.Certificate().Equal(cert) {
		t.Errorf("Replace with a certificate of another key = %v, want invalid", err)
	}
}

func TestInvalidRequests(t *testing.T) {
	issuer := first(t).Issuer()
	_, good, err := pki.NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	weak, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	other, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, weak)
	if err != nil {
		t.Fatal(err)
	}
	forged := append([]byte{}, good...)
	forged[len(forged)-1] ^= 1
	for name, request := range map[string][]byte{"empty": nil, "garbage": []byte("x"), "another algorithm": other, "forged": forged} {
		if _, err := issuer.Issue(request, two, time.Now()); !errors.Is(err, fault.Invalid) {
			t.Errorf("Issue of a request that is %s = %v, want invalid", name, err)
		}
	}
	for _, node := range []string{"", "short", "UPPERCASEUPPERCASEUPPER", "a.b.c.d.e.f.g.h.i.j.k", "../../../../../../../etc", strings.Repeat("a", 41)} {
		if _, err := issuer.Issue(good, node, time.Now()); !errors.Is(err, fault.Invalid) {
			t.Errorf("Issue for node %q = %v, want invalid", node, err)
		}
	}
}

func FuzzIssue(f *testing.F) {
	a, err := pki.NewAuthority(time.Now())
	if err != nil {
		f.Fatal(err)
	}
	_, request, err := pki.NewRequest()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(request)
	f.Fuzz(func(t *testing.T, request []byte) {
		cert, err := a.Issue(request, two, time.Now())
		if err != nil {
			return
		}
		if node, err := pki.Verify(cert, a.Certificate(), time.Now(), 0); err != nil || node != two || cert.IsCA {
			t.Errorf("an issued certificate is of %q (%v), authority: %v; want node two", node, err, cert.IsCA)
		}
	})
}

func TestVerifiedCertificatesExpire(t *testing.T) {
	a := first(t)
	now := time.Now()
	peer := func(id *pki.Identity, at time.Time, grace time.Duration) error {
		_, err := a.Peer(&tls.ConnectionState{PeerCertificates: []*x509.Certificate{id.Certificate()}}, at, grace)
		return err
	}
	b := join(t, a.Issuer(), two, now)
	foreign := join(t, first(t).Issuer(), two, now)
	for range 2 { // the second time, the signature is not verified
		if err := peer(b, now, 0); err != nil {
			t.Errorf("a valid certificate: %v", err)
		}
		if err := peer(foreign, now, 0); !errors.Is(err, fault.Unauthenticated) {
			t.Errorf("the certificate of another fleet: %v, want unauthenticated", err)
		}
		for _, at := range []time.Time{now.Add(25 * time.Hour), now.Add(-25 * time.Hour)} {
			if err := peer(b, at, 0); !errors.Is(err, fault.Unauthenticated) {
				t.Errorf("a certificate of %s at %s: %v, want unauthenticated", now, at, err)
			}
		}
		if err := peer(b, now.Add(25*time.Hour), pki.Grace); err != nil {
			t.Errorf("an expired certificate for its renewal: %v", err)
		}
	}
}
