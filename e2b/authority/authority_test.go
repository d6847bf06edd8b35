package authority

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
)

// reach connects as a client that trusts the authority and returns the error of the certificate
// check.
func reach(t *testing.T, a *Authority, host string) error {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(a.PEM())) {
		t.Fatalf("%s is not a certificate", a.PEM())
	}
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	go tls.Server(server, &tls.Config{GetCertificate: a.Certificate}).Handshake()
	return tls.Client(client, &tls.Config{RootCAs: roots, ServerName: host, Time: a.now}).Handshake()
}

func TestCertificatesForHosts(t *testing.T) {
	for _, c := range []struct {
		domain   string
		good     []string
		refused  []string
		constant []string // expected PermittedDNSDomains
	}{
		{"localhost", []string{"localhost", "127.0.0.1", "::1", "api.localhost", "3000-iabc.localhost", "49983-iabc-client.localhost", "LOCALHOST"},
			[]string{"example.com", "notlocalhost", "localhost.example.com", "10.0.0.1"}, []string{"localhost"}},
		{"boxes.example.com", []string{"boxes.example.com", "api.boxes.example.com", "3000-iabc.boxes.example.com", "localhost", "127.0.0.1"},
			[]string{"example.com", "www.example.com", "evilboxes.example.com"}, []string{"boxes.example.com", "localhost"}},
	} {
		a, made, err := Open(t.TempDir(), c.domain)
		if err != nil || !made {
			t.Fatalf("%s: got %v, made %v, want a new authority", c.domain, err, made)
		}
		if got := fmt.Sprint(a.cert.PermittedDNSDomains); got != fmt.Sprint(c.constant) || !a.cert.PermittedDNSDomainsCritical {
			t.Errorf("%s is constrained to %s, want %s", c.domain, got, c.constant)
		}
		for _, host := range c.good {
			for range 2 { // newly issued, and from memory
				if err := reach(t, a, host); err != nil {
					t.Errorf("%s below %s: got %v, want a valid certificate", host, c.domain, err)
				}
			}
		}
		for _, host := range c.refused {
			if err := reach(t, a, host); err == nil {
				t.Errorf("%s has a certificate of the authority for %s", host, c.domain)
			}
		}
	}
}

// TestStolenAuthorityIsConstrained issues a certificate outside of the constraint, which the
// code never does. Clients reject it, because the constraint is in the CA certificate that they
// trust.
func TestStolenAuthorityIsConstrained(t *testing.T) {
	a, _, err := Open(t.TempDir(), "localhost")
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := a.issue("example.com")
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	if _, err := leaf.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "example.com"}); err == nil || !strings.Contains(err.Error(), "not permitted") {
		t.Errorf("a certificate for example.com: got %v, want that it is not permitted", err)
	}
}

func TestAuthorityPersists(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	first, _, err := Open(dir, "localhost")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "ca.pem")
	if i, err := os.Stat(name); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("%s: got %v, %v, want the mode 600: it has the key", name, i.Mode(), err)
	}
	if strings.Contains(first.PEM(), "PRIVATE KEY") {
		t.Error("clients are given the key")
	}
	second, made, err := Open(dir, "LocalHost")
	if err != nil || made || second.PEM() != first.PEM() {
		t.Errorf("opened again: got %v, made %v, want the same authority", err, made)
	}
	third, made, err := Open(dir, "boxes.example.com")
	if err != nil || !made || third.PEM() == first.PEM() {
		t.Errorf("for another domain: got %v, made %v, want another authority", err, made)
	}
	later := func() time.Time { return time.Now().Add(caTime) }
	if _, made, err := open(dir, "boxes.example.com", later); err != nil || !made {
		t.Errorf("when it has expired: got %v, made %v, want another authority", err, made)
	}
	if err := os.WriteFile(name, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(dir, "localhost"); fault.KindOf(err) != fault.Invalid || !strings.Contains(fault.RemedyOf(err), "remove it") {
		t.Errorf("a broken file: got %v, want that it is invalid, and the remedy", err)
	}
}

func TestCertificatesAreRenewed(t *testing.T) {
	now := time.Now()
	a, _, err := open(t.TempDir(), "localhost", func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	get := func(host string) *tls.Certificate {
		t.Helper()
		c, err := a.Certificate(&tls.ClientHelloInfo{ServerName: host})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := get("a.localhost")
	if again := get("A.localhost."); again != first {
		t.Error("the same host in another spelling got another certificate, want the one in memory")
	}
	now = now.Add(leafTime/2 + time.Minute)
	if late := get("a.localhost"); late == first || !late.Leaf.NotAfter.After(now.Add(leafTime-time.Minute)) {
		t.Error("a certificate past half of its lifetime was returned, want a new one")
	}
	keep := func(host string) (n int) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.leaves[host] = first
		return len(a.leaves)
	}
	for i := range 2 * maxLeaves {
		if keep(fmt.Sprint(i)) > maxLeaves {
			get(fmt.Sprintf("x%d.localhost", i))
		}
	}
	if n := keep("last"); n > maxLeaves+2 {
		t.Errorf("got %d certificates in memory, want at most %d and the one that was added", n, maxLeaves+1)
	}
}
