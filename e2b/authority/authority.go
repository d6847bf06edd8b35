// Package authority issues TLS certificates for the addresses of sandboxes from a certificate
// authority (CA) that the daemon creates.
//
// The CA is constrained to one domain and to loopback addresses (RFC 5280, section 4.2.1.10). A
// client that trusts it does not trust it for other names, even if its key is stolen.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/internal/atomicfile"
)

const (
	caTime   = 10 * 365 * 24 * time.Hour
	leafTime = 90 * 24 * time.Hour
	skew     = time.Hour // tolerated clock error of clients

	// maxLeaves limits the certificates in memory, because clients choose the names.
	maxLeaves = 1024
)

// An Authority issues certificates for hosts at and below one domain, and for loopback
// addresses. It is safe for concurrent use.
type Authority struct {
	domain string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	pem    []byte

	leafKey *ecdsa.PrivateKey
	now     func() time.Time

	mu sync.Mutex
	// +checklocks:mu
	leaves map[string]*tls.Certificate // by host
}

// Open loads the authority for a domain, without a port, from a directory. If the directory has
// none, or one that has expired or is for another domain, Open creates one and reports it in
// made. Clients need the certificate of a new authority.
func Open(dir, domain string) (a *Authority, made bool, err error) {
	return open(dir, domain, time.Now)
}

func open(dir, domain string, now func() time.Time) (a *Authority, made bool, err error) {
	domain = strings.ToLower(domain)
	name := filepath.Join(dir, "ca.pem")
	text, err := os.ReadFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, false, fmt.Errorf("read the certificate authority: %w", err)
	default:
		a, err := parse(text, domain, now)
		if err != nil {
			return nil, false, &fault.Error{Op: "authority.Open", On: name, Kind: fault.Invalid, Err: err, Remedy: "remove it, and give clients the certificate of its replacement"}
		}
		if slices.Equal(a.cert.PermittedDNSDomains, permitted(domain)) && now().Before(a.cert.NotAfter.Add(-leafTime)) {
			return a, false, nil
		}
	}
	text, err = create(domain, now())
	if err != nil {
		return nil, false, fmt.Errorf("create a certificate authority: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, false, fmt.Errorf("create the directory of the certificate authority: %w", err)
	}
	if err := atomicfile.Durable(name, text, 0o600); err != nil { // contains the private key
		return nil, false, fmt.Errorf("save the certificate authority: %w", err)
	}
	a, err = parse(text, domain, now)
	return a, true, err
}

// permitted returns the DNS constraints of an authority for a domain. A name permits itself and
// all names below it.
func permitted(domain string) []string {
	if net.ParseIP(domain) != nil || domain == "localhost" {
		return []string{"localhost"}
	}
	return []string{domain, "localhost"}
}

var loopback = []*net.IPNet{
	{IP: net.IPv4(127, 0, 0, 0).To4(), Mask: net.CIDRMask(8, 32)},
	{IP: net.IPv6loopback, Mask: net.CIDRMask(128, 128)},
}

func create(domain string, now time.Time) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate a key: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, fmt.Errorf("draw a serial number: %w", err)
	}
	t := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{Organization: []string{"glasshouse"}, CommonName: "glasshouse sandboxes at " + domain},
		NotBefore:    now.Add(-skew), NotAfter: now.Add(caTime),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: permitted(domain), PermittedIPRanges: loopback,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate: %w", err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the key: %w", err)
	}
	return append(
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})...), nil
}

func parse(text []byte, domain string, now func() time.Time) (*Authority, error) {
	pair, err := tls.X509KeyPair(text, text)
	if err != nil {
		return nil, errors.New("the file does not contain a certificate and its key") // the parser's error may quote the key
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !pair.Leaf.IsCA {
		return nil, errors.New("the file is not a certificate authority created by this program")
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate a key for leaf certificates: %w", err)
	}
	return &Authority{
		domain: domain, cert: pair.Leaf, key: key, leafKey: leafKey, now: now, leaves: map[string]*tls.Certificate{},
		pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}),
	}, nil
}

func newSerial() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
}

// PEM returns the CA certificate for clients, PEM-encoded.
func (a *Authority) PEM() string { return string(a.pem) }

// Certificate implements tls.Config.GetCertificate. A client that sends no host name, such as
// one that connects to an IP address, gets a certificate for the domain and the loopback
// addresses. A certificate covers one host, because clients reject *.localhost, which has no
// second dot.
func (a *Authority) Certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	host := strings.ToLower(strings.TrimSuffix(hello.ServerName, "."))
	if host == "" {
		host = a.domain
	}
	if !a.vouchesFor(host) {
		return nil, fmt.Errorf("%q is not below %s", host, strings.Join(a.cert.PermittedDNSDomains, " or "))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	// A certificate is valid for at least half of its lifetime when a client gets it.
	if leaf := a.leaves[host]; leaf != nil && a.now().Before(leaf.Leaf.NotAfter.Add(-leafTime/2)) {
		return leaf, nil
	}
	leaf, err := a.issue(host)
	if err != nil {
		return nil, err
	}
	if len(a.leaves) >= maxLeaves {
		clear(a.leaves)
	}
	a.leaves[host] = leaf
	return leaf, nil
}

func (a *Authority) vouchesFor(host string) bool {
	if host == a.domain {
		return true
	}
	for _, domain := range a.cert.PermittedDNSDomains {
		if host == domain || strings.HasSuffix(host, "."+domain) {
			return true
		}
	}
	return false
}

func (a *Authority) issue(host string) (*tls.Certificate, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, fmt.Errorf("draw a serial number for %s: %w", host, err)
	}
	now := a.now()
	t := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{Organization: []string{"glasshouse"}},
		NotBefore: now.Add(-skew), NotAfter: now.Add(leafTime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{host},
	}
	if host == a.domain {
		t.DNSNames = permitted(a.domain)
		t.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, &a.leafKey.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("issue a certificate for %s: %w", host, err)
	}
	leaf, err := x509.ParseCertificate(der)
	return &tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: a.leafKey, Leaf: leaf}, err
}
