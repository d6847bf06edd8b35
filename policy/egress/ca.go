package egress

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/internal/text"
)

const (
	caYears  = 10
	leafLife = 24 * time.Hour
	skew     = time.Hour // how far the jail's clock may lag behind
)

// A CA is the certificate authority of one jail. Only that jail trusts it. It can sign leaf
// certificates but no other CA (path length 0). It has no name constraints, because the rules
// can change while the jail trusts the CA. An attacker with the key can impersonate servers to
// this jail only.
type CA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte

	leafKey *ecdsa.PrivateKey

	mu sync.Mutex
	// +checklocks:mu
	leaves cache[string, *tls.Certificate]
}

// NewCA creates a certificate authority for a jail.
func NewCA(jail string) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate the key of the certificate authority: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("encode the public key of the certificate authority: %w", err)
	}
	keyID := sha256.Sum256(public)
	serial, err := newSerial()
	if err != nil {
		return nil, fmt.Errorf("generate a serial number: %w", err)
	}
	now := time.Now()
	// text.Clip keeps the common name within 64 characters (ub-common-name, RFC 5280, A.1).
	t := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{Organization: []string{"glasshouse"}, CommonName: "egress of jail " + text.Clip(jail, 40)},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.AddDate(caYears, 0, 0),
		KeyUsage:              x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
		SubjectKeyId:          keyID[:20],
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("create certificate authority: %w", err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the key of the certificate authority: %w", err)
	}
	var b bytes.Buffer
	pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: der})
	pem.Encode(&b, &pem.Block{Type: "PRIVATE KEY", Bytes: secret})
	return ParseCA(b.Bytes())
}

// ParseCA parses the result of CA.Secret.
func ParseCA(b []byte) (*CA, error) {
	invalid := func(err error) error { return fault.New(fault.Invalid, "egress.ParseCA", "", err) }
	pair, err := tls.X509KeyPair(b, b)
	if err != nil {
		return nil, invalid(errors.New("not a PEM certificate with its private key")) // the parser's error could contain parts of the key
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !pair.Leaf.IsCA {
		return nil, invalid(errors.New("not an egress certificate authority"))
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate the key of the certificates: %w", err)
	}
	return &CA{
		cert: pair.Leaf, key: key, leafKey: leafKey,
		pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}),
	}, nil
}

// PEM returns the certificate for the trust stores of the jail.
func (c *CA) PEM() []byte { return bytes.Clone(c.pem) }

// Secret returns the certificate and its private key in PEM, for ParseCA. The caller must keep
// the result confidential, in particular from the jail.
func (c *CA) Secret() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(c.key)
	if err != nil {
		return nil, fmt.Errorf("encode the key of the certificate authority: %w", err)
	}
	return append(c.PEM(), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})...), nil
}

// Format implements fmt.Formatter. It prevents fmt from printing the private key.
func (c *CA) Format(s fmt.State, _ rune) { fmt.Fprintf(s, "CA(%s)", c.cert.Subject.CommonName) }

// leaf returns a leaf certificate for the host. Certificates are cached.
func (c *CA) leaf(host string) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l, ok := c.leaves.get(host); ok && time.Until(l.Leaf.NotAfter) > leafLife/2 {
		return l, nil
	}
	serial, err := newSerial()
	if err != nil {
		return nil, fmt.Errorf("generate a serial number: %w", err)
	}
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{Organization: []string{"glasshouse"}},
		NotBefore:    now.Add(-skew),
		NotAfter:     now.Add(leafLife),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if a, err := netip.ParseAddr(host); err == nil {
		t.IPAddresses = []net.IP{a.AsSlice()}
	} else {
		t.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, c.cert, &c.leafKey.PublicKey, c.key)
	if err != nil {
		return nil, fmt.Errorf("create a certificate for %s: %w", host, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse the certificate of %s: %w", host, err)
	}
	l := &tls.Certificate{Certificate: [][]byte{der, c.cert.Raw}, PrivateKey: crypto.PrivateKey(c.leafKey), Leaf: cert}
	c.leaves.put(host, l)
	return l, nil
}

func newSerial() (*big.Int, error) {
	// A serial number is positive and has at most 20 octets (RFC 5280, 4.1.2.2).
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
}
