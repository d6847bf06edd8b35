// Package pki issues and checks the certificates with which the daemons of a fleet identify
// themselves to each other.
//
// A fleet has one certificate authority. Its key is on the nodes that issue certificates.
// Certificates of nodes are valid for a day, and are renewed after a third of it. A certificate
// proves which node a connection belongs to, and nothing about users: requests that a node
// forwards have the token of the user.
package pki

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"strings"
	"time"

	"glasshouse/fault"
)

const (
	// Lifetime is how long the certificate of a node is valid.
	Lifetime = 24 * time.Hour

	// Grace is how long after its end a certificate still suffices to get a new one, for a node
	// that was switched off.
	Grace = 30 * 24 * time.Hour

	authorityLifetime = 10 * 365 * 24 * time.Hour
	skew              = 10 * time.Minute // tolerated difference of clocks
)

// suffix follows the ID of a node in its name in TLS.
const suffix = ".node.glasshouse.internal"

// serverName returns the name of a node in TLS.
func serverName(node string) string { return node + suffix }

// An Authority issues certificates.
type Authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// NewAuthority creates the authority of a new fleet.
func NewAuthority(now time.Time) (*Authority, error) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, fmt.Errorf("generate the key of the authority: %w", err)
	}
	name := "Glasshouse fleet " + strings.ToLower(rand.Text()[:8])
	t := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-skew), NotAfter: now.Add(authorityLifetime),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: []string{suffix},
	}
	der, err := sign(t, t, public, private)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &Authority{cert, private}, err
}

func sign(t, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("choose a serial number: %w", err)
	}
	t.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, t, parent, public, key)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate: %w", err)
	}
	return der, nil
}

// Certificate returns the certificate of the authority.
func (a *Authority) Certificate() *x509.Certificate { return a.cert }

// Issue issues a certificate for a node to the key of a request (PKCS #10, DER). The names in the
// request are ignored.
func (a *Authority) Issue(request []byte, node string, now time.Time) (*x509.Certificate, error) {
	const op = "pki.Issue"
	r, err := x509.ParseCertificateRequest(request)
	if err != nil {
		return nil, fault.New(fault.Invalid, op, node, err)
	}
	if err := r.CheckSignature(); err != nil {
		return nil, fault.New(fault.Invalid, op, node, err)
	}
	if _, ok := r.PublicKey.(ed25519.PublicKey); !ok {
		return nil, fault.Newf(fault.Invalid, op, node, "the key of the request is not an Ed25519 key")
	}
	if !ValidNode(node) {
		return nil, fault.Newf(fault.Invalid, op, "", "%.100q is not the ID of a node", node)
	}
	t := &x509.Certificate{
		Subject: pkix.Name{CommonName: node}, NotBefore: now.Add(-skew), NotAfter: now.Add(Lifetime),
		DNSNames: []string{serverName(node)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		URIs:        []*url.URL{{Scheme: "spiffe", Host: "glasshouse.internal", Path: "/node/" + node}},
	}
	if t.NotAfter.After(a.cert.NotAfter) {
		t.NotAfter = a.cert.NotAfter
	}
	der, err := sign(t, a.cert, r.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// ValidNode reports whether s has the form of an ID of a node.
func ValidNode(s string) bool {
	return len(s) >= 16 && len(s) <= 40 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

// Verify returns the ID of the node to which a certificate belongs. It returns
// fault.Unauthenticated unless the authority has issued the certificate, and it is valid or ended
// at most grace ago.
func Verify(cert, authority *x509.Certificate, now time.Time, grace time.Duration) (node string, err error) {
	fail := func(err error, remedy string) (string, error) {
		return "", &fault.Error{Op: "pki.Verify", Kind: fault.Unauthenticated, On: cert.Subject.CommonName, Err: err, Remedy: remedy}
	}
	at := now
	if now.After(cert.NotAfter) {
		if now.After(cert.NotAfter.Add(grace)) {
			return fail(fmt.Errorf("the certificate of the node expired at %s, and it is %s", cert.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339)),
				"check the clocks of both hosts; if they are right, create a token with glasshouse node token, and join again")
		}
		at = cert.NotAfter
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority)
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return fail(err, "check the clocks of both hosts, and that both joined the same fleet")
	}
	if len(cert.DNSNames) == 1 {
		if node, ok := strings.CutSuffix(cert.DNSNames[0], suffix); ok && ValidNode(node) {
			return node, nil
		}
	}
	return fail(errors.New("the certificate is not that of a node"), "")
}

// Fingerprint returns the SHA-256 of a certificate, for people to compare.
func Fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// The blocks of PEM files.
const (
	certBlock = "CERTIFICATE"
	keyBlock  = "PRIVATE KEY"
)

func encodeCert(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: certBlock, Bytes: cert.Raw})
}

func encodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: der}), nil
}

func decode(data []byte, kind string) ([]byte, error) {
	b, _ := pem.Decode(data)
	if b == nil || b.Type != kind {
		return nil, fmt.Errorf("the file has no PEM block %s", kind)
	}
	return b.Bytes, nil
}
