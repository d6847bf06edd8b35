package egress

import (
	"bytes"
	"crypto/sha1"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf16"
)

// A TrustFile is a file that adds a jail's certificate authority to a trust store in the jail.
type TrustFile struct {
	Path string // path in the jail, such as "/etc/ssl/certs/ca-certificates.crt"
	Data []byte
}

// Paths in the jail of the certificate authority alone, and of a bundle with all trusted
// authorities. They do not depend on the jail's distribution.
const (
	TrustCA     = "/etc/glasshouse/egress-ca.pem"
	TrustBundle = "/etc/glasshouse/ca-bundle.pem"
)

// bundles are the paths of the system trust stores of common distributions.
var bundles = []string{
	"etc/ssl/certs/ca-certificates.crt",                // Debian, Alpine, Arch, Nix
	"etc/pki/tls/certs/ca-bundle.crt",                  // Fedora
	"etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // Fedora; target of the previous path
	"etc/ssl/ca-bundle.pem",                            // SUSE
	"etc/ssl/cert.pem",                                 // Alpine, BSD
}

// keystores are the paths of Java trust stores.
var keystores = []string{
	"etc/ssl/certs/java/cacerts",
	"etc/pki/java/cacerts",
	"etc/pki/ca-trust/extracted/java/cacerts",
	"usr/lib/jvm/*/lib/security/cacerts",
	"usr/lib/jvm/*/jre/lib/security/cacerts",
	"opt/java/*/lib/security/cacerts",
	"usr/java/*/lib/security/cacerts",
}

// trustEnv are the environment variables for programs that have their own trust store or read
// only the store that the variable names.
var trustEnv = map[string]string{
	"SSL_CERT_FILE":       TrustBundle, // OpenSSL, Go, Ruby, curl, uv
	"CURL_CA_BUNDLE":      TrustBundle,
	"REQUESTS_CA_BUNDLE":  TrustBundle, // Python's requests has its own store
	"PIP_CERT":            TrustBundle,
	"AWS_CA_BUNDLE":       TrustBundle,
	"GIT_SSL_CAINFO":      TrustBundle,
	"CARGO_HTTP_CAINFO":   TrustBundle,
	"NIX_SSL_CERT_FILE":   TrustBundle,
	"DENO_CERT":           TrustCA, // added to the program's own store, like the next one
	"NODE_EXTRA_CA_CERTS": TrustCA,
}

// TrustEnv returns the environment variables for the files of TrustFiles.
func TrustEnv() map[string]string {
	env := make(map[string]string, len(trustEnv))
	for k, v := range trustEnv {
		env[k] = v
	}
	return env
}

// TrustFiles returns the files to write into a jail so that its programs also trust c: the
// trust stores found in root, with c added, and the two files that TrustEnv refers to. root is
// the root filesystem of the jail. Its content is untrusted, so root must not follow symbolic
// links to the outside (os.Root.FS does not). If root has no trust store, the certificates of
// base, for example the host's, are used instead; base may be empty.
func (c *CA) TrustFiles(root fs.FS, base []byte) ([]TrustFile, error) {
	var files []TrustFile
	found := base
	for i, name := range bundles {
		b, err := readStore(root, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("read the jail's trust stores: %w", err)
		}
		if i == 0 || bytes.Equal(found, base) {
			found = b
		}
		files = append(files, TrustFile{"/" + name, c.with(b)})
	}
	all := c.with(found)
	files = append(files, TrustFile{TrustCA, c.PEM()}, TrustFile{TrustBundle, all})
	var store []byte
	for _, pattern := range keystores {
		names, err := fs.Glob(root, pattern)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if store == nil {
				store = keystore(certificates(all))
			}
			files = append(files, TrustFile{path.Join("/", name), store})
		}
	}
	slices.SortFunc(files, func(a, b TrustFile) int { return strings.Compare(a.Path, b.Path) })
	return files, nil
}

const maxStore = 16 << 20

func readStore(root fs.FS, name string) ([]byte, error) {
	st, err := fs.Stat(root, name)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxStore {
		return nil, &fs.PathError{Op: "read", Path: name, Err: fs.ErrNotExist} // not a regular trust store
	}
	return fs.ReadFile(root, name)
}

// with returns the bundle with c added, unless it contains c already.
func (c *CA) with(bundle []byte) []byte {
	if bytes.Contains(bundle, c.pem) {
		return bundle
	}
	b := bytes.Clone(bundle)
	if len(b) > 0 && b[len(b)-1] != '\n' {
		b = append(b, '\n')
	}
	return append(b, c.pem...)
}

// certificates returns the certificates of a PEM bundle in DER.
func certificates(bundle []byte) (certs [][]byte) {
	for {
		var b *pem.Block
		b, bundle = pem.Decode(bundle)
		if b == nil {
			return certs
		}
		if b.Type == "CERTIFICATE" {
			certs = append(certs, b.Bytes)
		}
	}
}

// keystore encodes certificates in the JKS format, which all Java versions can read: a magic
// number, a version, entries, and a SHA-1 digest that starts with the store password (changeit
// by default).
func keystore(certs [][]byte) []byte {
	var b bytes.Buffer
	number := func(n uint32) { binary.Write(&b, binary.BigEndian, n) }
	text := func(s string) {
		binary.Write(&b, binary.BigEndian, uint16(len(s)))
		b.WriteString(s)
	}
	number(0xfeedfeed)
	number(2)
	number(uint32(len(certs)))
	now := uint64(time.Now().UnixMilli())
	for i, der := range certs {
		number(2) // trusted certificate entry
		text(fmt.Sprintf("glasshouse-%d", i))
		binary.Write(&b, binary.BigEndian, now)
		text("X.509")
		number(uint32(len(der)))
		b.Write(der)
	}
	// The digest covers the password in UTF-16BE, a constant and the store (JDK, getPreKeyedHash
	// of sun.security.provider.JavaKeyStore).
	sum := sha1.New()
	for _, u := range utf16.Encode([]rune("changeit")) {
		sum.Write([]byte{byte(u >> 8), byte(u)})
	}
	sum.Write([]byte("Mighty Aphrodite"))
	sum.Write(b.Bytes())
	return sum.Sum(b.Bytes())
}
