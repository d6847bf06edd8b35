package chain

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/internal/dirs"
)

// Files of a data directory. KeyFile is readable only by its owner, PublicFile by all users.
const (
	KeyFile    = "chain.key"
	PublicFile = "chain.pub"
)

// A Key signs checkpoints. Its name is the origin of the log.
type Key struct {
	signer note.Signer
	public PublicKey
}

// A PublicKey is the public half of a Key. It suffices to verify a chain.
type PublicKey struct {
	verifier note.Verifier
	text     string
}

// String returns the key in the format of signed notes: name, hash and key.
func (p PublicKey) String() string { return p.text }

// LoadKey returns the key in dir, and creates one if none exists.
func LoadKey(dir string) (*Key, error) {
	const op = "chain.LoadKey"
	name := filepath.Join(dir, KeyFile)
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return newKey(op, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("read the chain's key: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read the chain's key: %w", err)
	}
	if st.Mode().Perm()&0o077 != 0 {
		return nil, &fault.Error{
			Op: op, On: name, Kind: fault.Denied, Err: fmt.Errorf("key file is accessible to other users (mode %04o)", st.Mode().Perm()),
			Remedy: "if no other user has read it, run: chmod 600 " + name,
		}
	}
	text := make([]byte, 1024)
	n, _ := f.Read(text) // parseKey detects a failed read
	k, err := parseKey(string(text[:n]))
	if err != nil {
		return nil, fault.Newf(fault.Invalid, op, name, "%w", err)
	}
	return k, publishKey(dir, k)
}

func newKey(op, dir string) (*Key, error) {
	pub := filepath.Join(dir, PublicFile)
	if _, err := os.Lstat(pub); err == nil {
		return nil, &fault.Error{
			Op: op, On: filepath.Join(dir, KeyFile), Kind: fault.Conflict, Err: fmt.Errorf("the key is missing, but %s exists", PublicFile),
			Remedy: "restore the key: a chain is signed with a single key",
		}
	}
	name := make([]byte, 6)
	rand.Read(name) // never fails
	private, _, err := note.GenerateKey(rand.Reader, "glasshouse/"+hex.EncodeToString(name))
	if err != nil {
		return nil, fmt.Errorf("create the chain's key: %w", err)
	}
	k, err := parseKey(private + "\n")
	if err != nil {
		return nil, fmt.Errorf("read the new key: %w", err)
	}
	if err := writeAtomic(dir, KeyFile, private+"\n", 0o600); err != nil {
		return nil, fmt.Errorf("write the chain's key: %w", err)
	}
	return k, publishKey(dir, k)
}

// publishKey ensures that the file of the public key exists and is correct.
func publishKey(dir string, k *Key) error {
	want := k.public.text + "\n"
	if have, err := os.ReadFile(filepath.Join(dir, PublicFile)); err == nil && string(have) == want {
		return nil
	}
	if err := writeAtomic(dir, PublicFile, want, 0o644); err != nil {
		return fmt.Errorf("publish the chain's key: %w", err)
	}
	return nil
}

// writeAtomic creates a file. Afterwards it exists completely and durably, or not at all.
func writeAtomic(dir, name, text string, mode os.FileMode) (err error) {
	f, err := os.CreateTemp(dir, ".tmp-*") // 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if _, err := f.WriteString(text); err != nil {
		return err
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(dir, name)); err != nil {
		return err
	}
	return dirs.Sync(dir)
}

var errNoKey = errors.New("not a key of the chain") // does not reveal the file content

func parseKey(text string) (*Key, error) {
	text = strings.TrimSuffix(text, "\n")
	signer, err := note.NewSigner(text)
	if err != nil {
		return nil, errNoKey
	}
	parts := strings.SplitN(text, "+", 5) // PRIVATE, KEY, name, hash, key
	seed, err := base64.StdEncoding.DecodeString(parts[len(parts)-1])
	if err != nil || len(seed) != 1+ed25519.SeedSize {
		return nil, errNoKey
	}
	p, err := newPublic(signer.Name(), ed25519.NewKeyFromSeed(seed[1:]).Public().(ed25519.PublicKey))
	if err != nil {
		return nil, errNoKey
	}
	return &Key{signer: signer, public: p}, nil
}

// PublicKey returns the key's public half.
func (k *Key) PublicKey() PublicKey { return k.public }

func newPublic(name string, key ed25519.PublicKey) (PublicKey, error) {
	text, err := note.NewEd25519VerifierKey(name, key)
	if err != nil {
		return PublicKey{}, fmt.Errorf("encode the public key: %w", err)
	}
	v, err := note.NewVerifier(text)
	return PublicKey{verifier: v, text: text}, err
}

// ParsePublic parses a public key in the format of PublicFile. It accepts only the canonical
// encoding, so one key has one text.
func ParsePublic(text string) (PublicKey, error) {
	text = strings.TrimSuffix(text, "\n")
	v, err := note.NewVerifier(text)
	if err != nil {
		return PublicKey{}, notPublic(err)
	}
	parts := strings.SplitN(text, "+", 3) // name, hash, key
	key, err := base64.StdEncoding.DecodeString(parts[len(parts)-1])
	if err != nil || len(key) != 1+ed25519.PublicKeySize {
		return PublicKey{}, notPublic(errNoKey)
	}
	p, err := newPublic(v.Name(), key[1:])
	if err != nil {
		return PublicKey{}, notPublic(err)
	}
	if p.text != text {
		return PublicKey{}, notPublic(errors.New("the encoding is not canonical"))
	}
	return p, nil
}

func notPublic(err error) error {
	return &fault.Error{
		Op: "chain.ParsePublic", Kind: fault.Invalid, Err: fmt.Errorf("not the public key of a chain: %w", err),
		Remedy: "give the line that " + PublicFile + " has, in the data directory",
	}
}
