package bundle

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"strings"

	"golang.org/x/crypto/blake2b"
	"golang.org/x/crypto/scrypt"

	"glasshouse/fault"
)

// Keys are kept in minisign's files, so that those of minisign can be used here
// and those made here there. A file is a comment and one line of base64.
const (
	algorithm  = "Ed"       // signatures by ed25519
	noKDF      = "\x00\x00" // the secret key lies open
	scryptKDF  = "Sc"       // it is sealed with a password
	checksumOf = "B2"       // BLAKE2b-256

	publicLen = 2 + 8 + ed25519.PublicKeySize
	secretLen = 2 + 2 + 2 + 32 + 8 + 8 + sealedLen
	sealedLen = 8 + ed25519.PrivateKeySize + 32

	commentPrefix = "untrusted comment:"
	maxKeyFile    = 4 << 10
)

// The cost of a password for keys that are made here: 128 MiB of memory.
const (
	scryptOps    = 4 << 20
	scryptMemory = 128 << 20

	// scryptMost is what a key file may ask for, which is what minisign asks for.
	scryptMost = 1 << 30
)

// A PublicKey verifies what its owner signed. It is comparable. Its id is for
// people to tell keys apart; it does not bind.
type PublicKey struct {
	id  [8]byte
	key [ed25519.PublicKeySize]byte
}

// A SecretKey signs. It never prints.
type SecretKey struct {
	public PublicKey
	key    ed25519.PrivateKey
}

// GenerateKey makes a key.
func GenerateKey() (*SecretKey, error) {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	k := &SecretKey{key: key}
	rand.Read(k.public.id[:]) // never fails
	copy(k.public.key[:], public)
	return k, nil
}

// Public is the key's other half.
func (k *SecretKey) Public() PublicKey { return k.public }

// String is what may be seen of it.
func (k *SecretKey) String() string { return "secret key " + k.public.ID() }

// GoString is what may be seen of it.
func (k *SecretKey) GoString() string { return k.String() }

// ID is the id as minisign prints it.
func (p PublicKey) ID() string { return fmt.Sprintf("%016X", binary.LittleEndian.Uint64(p.id[:])) }

// String is the key as minisign takes it at -P.
func (p PublicKey) String() string {
	b := append([]byte(algorithm), p.id[:]...)
	return base64.StdEncoding.EncodeToString(append(b, p.key[:]...))
}

// File is the key as a file of minisign.
func (p PublicKey) File() []byte {
	return fmt.Appendf(nil, "%s minisign public key %s\n%s\n", commentPrefix, p.ID(), p)
}

// ParsePublicKey reads a public key: the line of base64, or the file with it.
func ParsePublicKey(text string) (PublicKey, error) {
	var p PublicKey
	b, err := keyLine(text)
	if err == nil && (len(b) != publicLen || string(b[:2]) != algorithm) {
		err = errors.New("it has another length or algorithm")
	}
	if err != nil {
		return p, &fault.Error{
			Op: "bundle.ParsePublicKey", Kind: fault.Invalid, Err: fmt.Errorf("not a public key of minisign: %w", err),
			Remedy: "give the line that begins with RW, or the file with it",
		}
	}
	copy(p.id[:], b[2:])
	copy(p.key[:], b[10:])
	return p, nil
}

// MarshalText is String.
func (p PublicKey) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is ParsePublicKey.
func (p *PublicKey) UnmarshalText(text []byte) (err error) {
	*p, err = ParsePublicKey(string(text))
	return err
}

// keyLine is what the one line of base64 in a file says.
func keyLine(text string) ([]byte, error) {
	if len(text) > maxKeyFile {
		return nil, errors.New("it is too long")
	}
	var line string
	for l := range strings.Lines(text) {
		l = strings.TrimSpace(l)
		switch {
		case l == "" || line == "" && strings.HasPrefix(l, commentPrefix):
		case line != "":
			return nil, errors.New("it has more than one line of base64")
		default:
			line = l
		}
	}
	b, err := base64.StdEncoding.Strict().DecodeString(line)
	if err != nil || len(b) == 0 {
		return nil, errors.New("it has no line of base64") // never what was read: it may be a secret key
	}
	return b, nil
}

// ErrPassword is what a secret key that is sealed answers to a wrong password, or
// none.
var ErrPassword = errors.New("the password is wrong, or missing")

// ParseSecretKey reads a file with a secret key. The password is asked for only if
// the key is sealed, and may be nil if nobody can be asked.
func ParseSecretKey(text string, password func() ([]byte, error)) (*SecretKey, error) {
	const op = "bundle.ParseSecretKey"
	b, err := keyLine(text)
	if err == nil && len(b) != secretLen {
		err = errors.New("it has another length")
	}
	if err == nil && (string(b[:2]) != algorithm || string(b[4:6]) != checksumOf) {
		err = errors.New("it has another algorithm")
	}
	if err != nil {
		return nil, fault.Newf(fault.Invalid, op, "", "not a secret key of minisign: %w", err)
	}
	sealed := b[secretLen-sealedLen:]
	switch kdf := string(b[2:4]); {
	case kdf == noKDF:
	case kdf == scryptKDF && password != nil:
		if err := unseal(b, sealed, password); err != nil {
			return nil, err
		}
	case kdf == scryptKDF:
		return nil, fault.New(fault.Denied, op, "", ErrPassword)
	default:
		return nil, fault.Newf(fault.Invalid, op, "", "it is sealed in a way that is not known here")
	}
	k := &SecretKey{key: bytes.Clone(sealed[8 : 8+ed25519.PrivateKeySize])}
	copy(k.public.id[:], sealed)
	copy(k.public.key[:], k.key[ed25519.SeedSize:])
	if !ed25519.NewKeyFromSeed(k.key.Seed()).Equal(k.key) {
		return nil, fault.Newf(fault.Invalid, op, "", "its halves do not belong together")
	}
	return k, nil
}

// unseal opens a sealed key in place, and checks that it is one.
func unseal(file, sealed []byte, password func() ([]byte, error)) error {
	pad, err := keyPad(file[6:38], binary.LittleEndian.Uint64(file[38:]), binary.LittleEndian.Uint64(file[46:]), password)
	if err != nil {
		return err
	}
	subtle.XORBytes(sealed, sealed, pad)
	sum := checksum(sealed[:8], sealed[8:8+ed25519.PrivateKeySize])
	if subtle.ConstantTimeCompare(sum[:], sealed[8+ed25519.PrivateKeySize:]) != 1 {
		return fault.New(fault.Denied, "bundle.ParseSecretKey", "", ErrPassword)
	}
	return nil
}

func keyPad(salt []byte, ops, memory uint64, password func() ([]byte, error)) ([]byte, error) {
	n, p, err := scryptCost(ops, memory)
	if err != nil {
		return nil, fault.New(fault.Invalid, "bundle.ParseSecretKey", "", err)
	}
	word, err := password()
	if err != nil {
		return nil, err
	}
	defer clear(word)
	return scrypt.Key(word, salt, n, scryptR, p, sealedLen)
}

const scryptR = 8

// scryptCost is what libsodium makes of a limit of operations and one of memory.
func scryptCost(ops, memory uint64) (n, p int, err error) {
	if ops > 4*scryptMost || memory > scryptMost {
		return 0, 0, errors.New("its password costs more than anybody would wait for")
	}
	ops = max(ops, 32768)
	if ops < memory/32 {
		return pow2(ops / (scryptR * 4)), 1, nil
	}
	n = pow2(memory / (scryptR * 128))
	p = int(ops / 4 / uint64(n) / scryptR)
	if p < 1 || p > 16 {
		return 0, 0, errors.New("the cost of its password makes no sense")
	}
	return n, p, nil
}

// pow2 is the greatest power of two up to most, and 2 at the least.
func pow2(most uint64) int { return 1 << max(1, bits.Len64(most)-1) }

func checksum(id, key []byte) [32]byte {
	b := append([]byte(algorithm), id...)
	return blake2b.Sum256(append(b, key...))
}

// File is the key as a file of minisign, sealed if there is a password.
func (k *SecretKey) File(password []byte) ([]byte, error) {
	b := make([]byte, secretLen)
	copy(b, algorithm+noKDF+checksumOf)
	sealed := b[secretLen-sealedLen:]
	copy(sealed, k.public.id[:])
	copy(sealed[8:], k.key)
	comment := "minisign secret key " + k.public.ID()
	if len(password) > 0 {
		comment = "minisign encrypted secret key " + k.public.ID()
		copy(b[2:], scryptKDF)
		rand.Read(b[6:38]) // never fails
		binary.LittleEndian.PutUint64(b[38:], scryptOps)
		binary.LittleEndian.PutUint64(b[46:], scryptMemory)
		sum := checksum(k.public.id[:], k.key)
		copy(sealed[8+ed25519.PrivateKeySize:], sum[:])
		pad, err := keyPad(b[6:38], scryptOps, scryptMemory, func() ([]byte, error) { return bytes.Clone(password), nil })
		if err != nil {
			return nil, err
		}
		subtle.XORBytes(sealed, sealed, pad)
	}
	return fmt.Appendf(nil, "%s %s\n%s\n", commentPrefix, comment, base64.StdEncoding.EncodeToString(b)), nil
}

// SignJSON signs the canonical JSON of v, and returns the signature in base64. To
// keep what is signed for one purpose from passing for another, v has a format.
func (k *SecretKey) SignJSON(v any) (string, error) {
	text, err := canonicalJSON(v)
	if err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(ed25519.Sign(k.key, text)), nil
}

// VerifyJSON is whether signature is one that SignJSON made of v.
func (p PublicKey) VerifyJSON(v any, signature string) bool {
	text, err := canonicalJSON(v)
	if err != nil {
		return false
	}
	s, err := base64.StdEncoding.Strict().DecodeString(signature)
	return err == nil && len(s) == ed25519.SignatureSize && ed25519.Verify(p.key[:], text, s)
}
