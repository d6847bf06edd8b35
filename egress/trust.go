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

// A TrustFile is a file that makes programs in a jail trust its certificate
// authority.
type TrustFile struct {
	Path string // in the jail: "/etc/ssl/certs/ca-certificates.crt"
	Data []byte
}

// Where TrustFiles puts the authority alone and with all others, whatever the
// jail's system is.
const (
	TrustCA     = "/etc/glasshouse/egress-ca.pem"
	TrustBundle = "/etc/glasshouse/ca-bundle.pem"
)

// bundles are where systems keep the authorities that programs trust.
var bundles = []string{
	"etc/ssl/certs/ca-certificates.crt",                // Debian, Alpine, Arch, Nix
	"etc/pki/tls/certs/ca-bundle.crt",                  // Fedora
	"etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // Fedora, what the former leads to
	"etc/ssl/ca-bundle.pem",                            // SUSE
	"etc/ssl/cert.pem",                                 // Alpine, BSD
}

// keystores are where Java keeps them.
var keystores = []string{
	"etc/ssl/certs/java/cacerts",
	"etc/pki/java/cacerts",
	"etc/pki/ca-trust/extracted/java/cacerts",
	"usr/lib/jvm/*/lib/security/cacerts",
	"usr/lib/jvm/*/jre/lib/security/cacerts",
	"opt/java/*/lib/security/cacerts",
	"usr/java/*/lib/security/cacerts",
}

// trustEnv are the variables by which programs are told what to trust that look
// nowhere else, or in a store of their own.
var trustEnv = map[string]string{
	"SSL_CERT_FILE":       TrustBundle, // OpenSSL, Go, Ruby, curl, uv
	"CURL_CA_BUNDLE":      TrustBundle,
	"REQUESTS_CA_BUNDLE":  TrustBundle, // Python's requests, which has a store of its own
	"PIP_CERT":            TrustBundle,
	"AWS_CA_BUNDLE":       TrustBundle,
	"GIT_SSL_CAINFO":      TrustBundle,
	"CARGO_HTTP_CAINFO":   TrustBundle,
	"NIX_SSL_CERT_FILE":   TrustBundle,
	"DENO_CERT":           TrustCA, // added to a store of its own, as the next
	"NODE_EXTRA_CA_CERTS": TrustCA,
}

// TrustEnv returns the environment that goes with TrustFiles.
func TrustEnv() map[string]string {
	env := make(map[string]string, len(trustEnv))
	for k, v := range trustEnv {
		env[k] = v
	}
	return env
}

// TrustFiles returns the files that are to be written into a jail so that its
// programs trust c beside what they trust already: the stores that are in root,
// with c added, and two files that TrustEnv speaks of. root is the jail's root
// filesystem; a stranger may have filled it, so it must not lead out of itself
// (os.Root.FS does not). Where root has no store, the certificates of base are
// what is trusted already: the host's, say, or none.
func (c *CA) TrustFiles(root fs.FS, base []byte) ([]TrustFile, error) {
	var files []TrustFile
	found := base
	for i, name := range bundles {
		b, err := readStore(root, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("read what the jail trusts: %w", err)
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
		return nil, &fs.PathError{Op: "read", Path: name, Err: fs.ErrNotExist} // no store, whatever it is
	}
	return fs.ReadFile(root, name)
}

// with returns a bundle with c in it, once.
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

// certificates returns those of a bundle, as DER.
func certificates(bundle []byte) (certs [][]byte) {
	for {
		var b *pem.Block
		if b, bundle = pem.Decode(bundle); b == nil {
			return certs
		}
		if b.Type == "CERTIFICATE" {
			certs = append(certs, b.Bytes)
		}
	}
}

// keystore writes certificates as a keystore of Java's first format, which every
// Java reads whatever the file was before: a magic number, a version, entries, and
// a digest that begins with the store's usual password.
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
		number(2) // a certificate that is trusted
		text(fmt.Sprintf("glasshouse-%d", i))
		binary.Write(&b, binary.BigEndian, now)
		text("X.509")
		number(uint32(len(der)))
		b.Write(der)
	}
	sum := sha1.New()
	for _, u := range utf16.Encode([]rune("changeit")) {
		sum.Write([]byte{byte(u >> 8), byte(u)})
	}
	sum.Write([]byte("Mighty Aphrodite"))
	sum.Write(b.Bytes())
	return sum.Sum(b.Bytes())
}
