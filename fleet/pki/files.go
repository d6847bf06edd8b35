package pki

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"glasshouse/fault"
	"glasshouse/internal/atomicfile"
)

// An Identity is the key and certificate of this node, in files of a directory. It is safe for
// concurrent use.
type Identity struct {
	dir       string
	key       ed25519.PrivateKey
	authority *x509.Certificate
	issuer    *Authority // nil: other nodes issue certificates

	mu sync.Mutex
	// +checklocks:mu
	cert *x509.Certificate
	// verified has the nodes of certificates that the authority has issued, by the digest of a
	// certificate: its signature is not checked for each request.
	// +checklocks:mu
	verified map[[sha256.Size]byte]string
}

const maxVerified = 10_000

// The files of an identity.
const (
	authorityFile = "authority.pem"
	issuerFile    = "authority.key"
	certFile      = "node.pem"
	keyFile       = "node.key"
)

// Open reads an identity. It returns fault.NotFound if the directory has none.
func Open(dir string) (*Identity, error) {
	id := &Identity{dir: dir}
	authority, err := readFile(dir, authorityFile, certBlock, x509.ParseCertificate)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &fault.Error{Op: "pki.Open", Kind: fault.NotFound, On: dir, Err: errors.New("this node is not in a fleet"),
			Remedy: "glasshouse fleet init for the first node, glasshouse node join for each other"}
	}
	if err != nil {
		return nil, err
	}
	id.authority = authority
	key, err := readFile(dir, keyFile, keyBlock, x509.ParsePKCS8PrivateKey)
	if err != nil {
		return nil, err
	}
	private, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, fault.Newf(fault.Invalid, "pki.Open", keyFile, "not an Ed25519 key")
	}
	id.key = private
	cert, err := readFile(dir, certFile, certBlock, x509.ParseCertificate)
	if err != nil {
		return nil, err
	}
	id.cert = cert // not yet shared
	issuer, err := readFile(dir, issuerFile, keyBlock, x509.ParsePKCS8PrivateKey)
	switch signer, ok := issuer.(crypto.Signer); {
	case errors.Is(err, fs.ErrNotExist):
		return id, nil
	case err != nil:
		return nil, err
	case !ok:
		return nil, fault.Newf(fault.Invalid, "pki.Open", issuerFile, "not a private key")
	default:
		id.issuer = &Authority{authority, signer}
	}
	return id, nil
}

func readFile[T any](dir, name, kind string, parse func([]byte) (T, error)) (v T, err error) {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return v, fmt.Errorf("read the certificates of the fleet: %w", err)
	}
	der, err := decode(data, kind)
	if err == nil {
		v, err = parse(der)
	}
	if err != nil {
		return v, fault.New(fault.Invalid, "pki.Open", filepath.Join(dir, name), err)
	}
	return v, nil
}

// Init creates the authority of a new fleet, and the identity of its first node. It returns
// fault.Conflict if the directory has an identity.
func Init(dir, node string, now time.Time) (*Identity, error) {
	a, err := NewAuthority(now)
	if err != nil {
		return nil, err
	}
	return Enroll(dir, node, a, now)
}

// Enroll creates the identity of a node that has the key of the authority. It returns
// fault.Conflict if the directory has an identity.
func Enroll(dir, node string, a *Authority, now time.Time) (*Identity, error) {
	key, request, err := NewRequest()
	if err != nil {
		return nil, err
	}
	cert, err := a.Issue(request, node, now)
	if err != nil {
		return nil, err
	}
	return create(dir, key, cert, a.cert, a)
}

// Files returns the contents of the files of an authority, by name, for ReadAuthority.
func (a *Authority) Files() (map[string][]byte, error) {
	key, err := encodeKey(a.key)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{authorityFile: encodeCert(a.cert), issuerFile: key}, nil
}

// ReadAuthority reads the files of an authority in a directory.
func ReadAuthority(dir string) (*Authority, error) {
	cert, err := readFile(dir, authorityFile, certBlock, x509.ParseCertificate)
	if err != nil {
		return nil, err
	}
	key, err := readFile(dir, issuerFile, keyBlock, x509.ParsePKCS8PrivateKey)
	if err != nil {
		return nil, err
	}
	private, ok := key.(ed25519.PrivateKey)
	if !ok || !private.Public().(ed25519.PublicKey).Equal(cert.PublicKey) {
		return nil, fault.Newf(fault.Invalid, "pki.ReadAuthority", dir, "%s is not the key of the certificate in %s", issuerFile, authorityFile)
	}
	return &Authority{cert, private}, nil
}

// NewRequest creates a key, and a request for a certificate for it (PKCS #10, DER).
func NewRequest() (ed25519.PrivateKey, []byte, error) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, nil, fmt.Errorf("generate the key of the node: %w", err)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, nil, fmt.Errorf("request a certificate: %w", err)
	}
	return key, request, nil
}

// Create stores the identity of a node that has joined a fleet. It returns fault.Conflict if the
// directory has an identity.
func Create(dir string, key ed25519.PrivateKey, cert, authority *x509.Certificate) (*Identity, error) {
	return create(dir, key, cert, authority, nil)
}

func create(dir string, key ed25519.PrivateKey, cert, authority *x509.Certificate, issuer *Authority) (*Identity, error) {
	if err := Vacant(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of certificates: %w", err)
	}
	id := &Identity{dir: dir, key: key, authority: authority, issuer: issuer, cert: cert}
	if err := id.check(cert); err != nil {
		return nil, err
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	files := []struct {
		name string
		data []byte
	}{{keyFile, keyPEM}, {certFile, encodeCert(cert)}}
	if issuer != nil {
		issuerPEM, err := encodeKey(issuer.key)
		if err != nil {
			return nil, err
		}
		files = append(files, struct {
			name string
			data []byte
		}{issuerFile, issuerPEM})
	}
	for _, f := range files {
		if err := atomicfile.Durable(filepath.Join(dir, f.name), f.data, 0o600); err != nil {
			return nil, fmt.Errorf("store the certificates of the fleet: %w", err)
		}
	}
	// Open looks for this file first: without it there is no identity.
	if err := atomicfile.Durable(filepath.Join(dir, authorityFile), encodeCert(authority), 0o600); err != nil {
		return nil, fmt.Errorf("store the certificates of the fleet: %w", err)
	}
	return id, nil
}

// Vacant returns fault.Conflict if a directory has an identity.
func Vacant(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, authorityFile)); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, &fault.Error{Op: "pki.Create", Kind: fault.Conflict, On: dir, Err: errors.New("this node is in a fleet"),
			Remedy: "to move it to another fleet, stop the daemon, remove this directory, and join again"})
	}
	return nil
}

// check verifies that a certificate belongs to the key of this node.
func (id *Identity) check(cert *x509.Certificate) error {
	if !bytes.Equal(cert.RawSubjectPublicKeyInfo, mustMarshal(id.key.Public())) {
		return fault.Newf(fault.Invalid, "pki.check", cert.Subject.CommonName, "the certificate has another key")
	}
	if err := cert.CheckSignatureFrom(id.authority); err != nil {
		return fault.New(fault.Invalid, "pki.check", cert.Subject.CommonName, err)
	}
	return nil
}

func mustMarshal(key crypto.PublicKey) []byte {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		panic(err) // an Ed25519 key always has an encoding
	}
	return der
}

// Authority returns the certificate of the fleet's authority.
func (id *Identity) Authority() *x509.Certificate { return id.authority }

// Issuer returns the authority if this node issues certificates, or nil.
func (id *Identity) Issuer() *Authority { return id.issuer }

// Certificate returns the current certificate.
func (id *Identity) Certificate() *x509.Certificate {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.cert
}

// Due reports whether the certificate should be renewed: a third of its life is over.
func (id *Identity) Due(now time.Time) bool {
	return now.After(id.Certificate().NotAfter.Add(-Lifetime * 2 / 3))
}

// Request returns a request for a new certificate for the same key.
func (id *Identity) Request() ([]byte, error) {
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, id.key)
	if err != nil {
		return nil, fmt.Errorf("request a certificate: %w", err)
	}
	return request, nil
}

// Replace stores and uses a new certificate.
func (id *Identity) Replace(cert *x509.Certificate) error {
	if err := id.check(cert); err != nil {
		return err
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	if err := atomicfile.Durable(filepath.Join(id.dir, certFile), encodeCert(cert), 0o600); err != nil {
		return fmt.Errorf("store the certificate of the node: %w", err)
	}
	id.cert = cert
	return nil
}

func (id *Identity) pair() *tls.Certificate {
	return &tls.Certificate{Certificate: [][]byte{id.Certificate().Raw, id.authority.Raw}, PrivateKey: id.key}
}

// Server returns the configuration of a listener for other nodes. It asks clients for a
// certificate, and does not verify it: a node that joins has none, and one that renews may have
// one that has ended. Peer verifies it.
func (id *Identity) Server() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"}, ClientAuth: tls.RequestClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return id.pair(), nil },
	}
}

// Peer returns the ID of the node at the other end of a connection, or fault.Unauthenticated.
func (id *Identity) Peer(c *tls.ConnectionState, now time.Time, grace time.Duration) (node string, err error) {
	if c == nil || len(c.PeerCertificates) == 0 {
		return "", fault.Newf(fault.Unauthenticated, "pki.Peer", "", "the certificate of a node is required")
	}
	cert := c.PeerCertificates[0]
	sum := sha256.Sum256(cert.Raw)
	id.mu.Lock()
	node = id.verified[sum]
	id.mu.Unlock()
	if node != "" && !now.Before(cert.NotBefore) && !now.After(cert.NotAfter) {
		return node, nil
	}
	node, err = Verify(cert, id.authority, now, grace)
	if err != nil {
		return "", err
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.verified == nil || len(id.verified) >= maxVerified {
		id.verified = map[[sha256.Size]byte]string{}
	}
	id.verified[sum] = node
	return node, nil
}

// Client returns the configuration of connections to a node.
func (id *Identity) Client(node string) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(id.authority)
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: serverName(node),
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return id.pair(), nil },
	}
}

// Joining returns the configuration of the connection of a node that joins a fleet, and has no
// certificate. The handshake fails unless the server shows the certificate of a node and that of
// the authority with this fingerprint, which has issued it: the client then sends a token.
func Joining(fingerprint string, now func() time.Time) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // VerifyConnection verifies
		VerifyConnection: func(c tls.ConnectionState) error {
			_, err := pinned(c, fingerprint, now())
			return err
		},
	}
}

// pinned returns the certificate of the authority that the server has shown.
func pinned(c tls.ConnectionState, fingerprint string, now time.Time) (*x509.Certificate, error) {
	if len(c.PeerCertificates) != 2 {
		return nil, fault.Newf(fault.Unauthenticated, "pki.Joining", "", "the server does not show the certificates of a node and an authority")
	}
	authority := c.PeerCertificates[1]
	if Fingerprint(authority) != fingerprint {
		return nil, &fault.Error{Op: "pki.Joining", Kind: fault.Unauthenticated, On: Fingerprint(authority), Err: fmt.Errorf("the authority of the fleet is not %s", fingerprint),
			Remedy: "check the address, and compare the fingerprint with that printed by glasshouse node token"}
	}
	_, err := Verify(c.PeerCertificates[0], authority, now, 0)
	return authority, err
}

// AuthorityOf returns the certificate of the authority that was verified in the handshake of
// Joining.
func AuthorityOf(c *tls.ConnectionState) *x509.Certificate { return c.PeerCertificates[1] }
