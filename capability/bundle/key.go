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

// Keys are stored in minisign files, so they can be exchanged with minisign. A file is a
// comment and one line of base64.
const (
	algorithm  = "Ed"       // signatures by ed25519
	noKDF      = "\x00\x00" // the secret key is not encrypted
	scryptKDF  = "Sc"       // the secret key is encrypted with a password
	checksumOf = "B2"       // BLAKE2b-256

	publicLen = 2 + 8 + ed25519.PublicKeySize
	secretLen = 2 + 2 + 2 + 32 + 8 + 8 + sealedLen
	sealedLen = 8 + ed25519.PrivateKeySize + 32

	commentPrefix = "untrusted comment:"
	maxKeyFile    = 4 << 10
)

// The scrypt limits of new keys: 128 MiB of memory.
const (
	scryptOps    = 4 << 20
	scryptMemory = 128 << 20

	// scryptMost is the accepted limit of a key file, minisign's default.
	scryptMost = 1 << 30
)

// A PublicKey verifies signatures. It is comparable. Its ID helps people to distinguish keys and is
// not authenticated.
type PublicKey struct {
	id  [8]byte
	key [ed25519.PublicKeySize]byte
}

// A SecretKey signs. Printing it does not reveal the key.
type SecretKey struct {
	public PublicKey
	key    ed25519.PrivateKey
}

// GenerateKey generates a key.
func GenerateKey() (*SecretKey, error) {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate a key: %w", err)
	}
	k := &SecretKey{key: key}
	rand.Read(k.public.id[:]) // never fails
	copy(k.public.key[:], public)
	return k, nil
}

// Public returns the public key.
func (k *SecretKey) Public() PublicKey { return k.public }

// String returns the ID of the key.
func (k *SecretKey) String() string { return "secret key " + k.public.ID() }

// GoString returns the ID of the key.
func (k *SecretKey) GoString() string { return k.String() }

// ID returns the ID in minisign's format.
func (p PublicKey) ID() string { return fmt.Sprintf("%016X", binary.LittleEndian.Uint64(p.id[:])) }

// String returns the key in the format of minisign's option -P.
func (p PublicKey) String() string {
	b := append([]byte(algorithm), p.id[:]...)
	return base64.StdEncoding.EncodeToString(append(b, p.key[:]...))
}

// File returns the key as a minisign file.
func (p PublicKey) File() []byte {
	return fmt.Appendf(nil, "%s minisign public key %s\n%s\n", commentPrefix, p.ID(), p)
}

// ParsePublicKey parses a public key: the base64 line, or a file that contains it.
func ParsePublicKey(text string) (PublicKey, error) {
	var p PublicKey
	b, err := keyLine(text)
	if err == nil && (len(b) != publicLen || string(b[:2]) != algorithm) {
		err = errors.New("unexpected length or algorithm")
	}
	if err != nil {
		return p, &fault.Error{
			Op: "bundle.ParsePublicKey", Kind: fault.Invalid, Err: fmt.Errorf("not a minisign public key: %w", err),
			Remedy: "use the line that begins with RW, or the file that contains it",
		}
	}
	copy(p.id[:], b[2:])
	copy(p.key[:], b[10:])
	return p, nil
}

// MarshalText returns the result of String.
func (p PublicKey) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText parses with ParsePublicKey.
func (p *PublicKey) UnmarshalText(text []byte) (err error) {
	*p, err = ParsePublicKey(string(text))
	return err
}

// keyLine decodes the base64 line of a key file.
func keyLine(text string) ([]byte, error) {
	if len(text) > maxKeyFile {
		return nil, errors.New("the file is too long")
	}
	var line string
	for l := range strings.Lines(text) {
		l = strings.TrimSpace(l)
		switch {
		case l == "" || line == "" && strings.HasPrefix(l, commentPrefix):
		case line != "":
			return nil, errors.New("more than one base64 line")
		default:
			line = l
		}
	}
	b, err := base64.StdEncoding.Strict().DecodeString(line)
	if err != nil || len(b) == 0 {
		return nil, errors.New("no base64 line") // without the input, which may be a secret key
	}
	return b, nil
}

// ErrPassword is the error for a wrong or missing password of an encrypted secret key.
var ErrPassword = errors.New("the password is wrong or missing")

// ParseSecretKey parses a secret key file. It calls password only if the key is encrypted.
// password may be nil if no password is available.
func ParseSecretKey(text string, password func() ([]byte, error)) (*SecretKey, error) {
	const op = "bundle.ParseSecretKey"
	b, err := keyLine(text)
	if err == nil && len(b) != secretLen {
		err = errors.New("unexpected length")
	}
	if err == nil && (string(b[:2]) != algorithm || string(b[4:6]) != checksumOf) {
		err = errors.New("unexpected algorithm")
	}
	if err != nil {
		return nil, fault.Newf(fault.Invalid, op, "", "not a minisign secret key: %w", err)
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
		return nil, fault.Newf(fault.Invalid, op, "", "unknown key derivation function")
	}
	k := &SecretKey{key: bytes.Clone(sealed[8 : 8+ed25519.PrivateKeySize])}
	copy(k.public.id[:], sealed)
	copy(k.public.key[:], k.key[ed25519.SeedSize:])
	if !ed25519.NewKeyFromSeed(k.key.Seed()).Equal(k.key) {
		return nil, fault.Newf(fault.Invalid, op, "", "the public key does not match the secret key")
	}
	return k, nil
}

// unseal decrypts a key in place and verifies its checksum.
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
		return nil, fmt.Errorf("read the password: %w", err)
	}
	defer clear(word)
	return scrypt.Key(word, salt, n, scryptR, p, sealedLen)
}

const scryptR = 8

// scryptCost converts libsodium's ops and memory limits to scrypt parameters, like
// crypto_pwhash_scryptsalsa208sha256.
func scryptCost(ops, memory uint64) (n, p int, err error) {
	if ops > 4*scryptMost || memory > scryptMost {
		return 0, 0, errors.New("the parameters of the password hash in the file are too high")
	}
	ops = max(ops, 32768)
	if ops < memory/32 {
		return pow2(ops / (scryptR * 4)), 1, nil
	}
	n = pow2(memory / (scryptR * 128))
	p = int(ops / 4 / uint64(n) / scryptR)
	if p < 1 || p > 16 {
		return 0, 0, errors.New("the parameters of the password hash in the file are invalid")
	}
	return n, p, nil
}

// pow2 returns the greatest power of two up to most, at least 2.
func pow2(most uint64) int { return 1 << max(1, bits.Len64(most)-1) }

func checksum(id, key []byte) [32]byte {
	b := append([]byte(algorithm), id...)
	return blake2b.Sum256(append(b, key...))
}

// File returns the key as a minisign file, encrypted if password is not empty.
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

// SignJSON signs the canonical JSON of v and returns the signature in base64. v has a format
// field, so that a signature for one purpose is not valid for another.
func (k *SecretKey) SignJSON(v any) (string, error) {
	text, err := canonicalJSON(v)
	if err != nil {
		return "", fmt.Errorf("encode the value to sign: %w", err)
	}
	return base64.StdEncoding.EncodeToString(ed25519.Sign(k.key, text)), nil
}

// VerifyJSON reports whether signature is a signature of v by SignJSON.
func (p PublicKey) VerifyJSON(v any, signature string) bool {
	text, err := canonicalJSON(v)
	if err != nil {
		return false
	}
	s, err := base64.StdEncoding.Strict().DecodeString(signature)
	return err == nil && len(s) == ed25519.SignatureSize && ed25519.Verify(p.key[:], text, s)
}
