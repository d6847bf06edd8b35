package secret

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"filippo.io/age"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/internal/dirs"
)

// A keyring is the key that secrets are sealed with, and, only while one takes
// over from another, the one before it. The newest is the first.
type keyring struct {
	file       string
	passphrase []byte // protects the file, if not empty
	ids        []*age.X25519Identity
}

// scryptWork is the logarithm of what a guess at the passphrase costs: about a
// second.
var scryptWork = 18

const (
	maxKeyFile = 64 << 10
	ageHeader  = "age-encryption.org/"
	keyComment = "# The key that the secrets of this data directory are sealed with.\n" +
		"# Whoever has it and the database can read them; without it nobody can.\n"
)

// openKeys reads the key file, or makes one if there is none and mayMake says so.
func openKeys(file string, passphrase []byte, mayMake bool) (*keyring, error) {
	k := &keyring{file: file, passphrase: passphrase}
	data, err := readPrivate(file, maxKeyFile)
	switch {
	case errors.Is(err, fs.ErrNotExist) && mayMake:
		id, err := age.GenerateX25519Identity()
		if err != nil {
			return nil, err
		}
		k.ids = []*age.X25519Identity{id}
		return k, k.write()
	case errors.Is(err, fs.ErrNotExist):
		return nil, &fault.Error{Op: "secret.Open", On: file, Kind: fault.Unavailable,
			Err: errors.New("there are sealed secrets, but the key to them is gone"), Remedy: "put the key file back, or remove the secrets from the database"}
	case err != nil:
		return nil, err
	}
	defer clear(data)
	return k, k.parse(data)
}

// parse takes the content of the key file. One that a passphrase should protect
// and does not is written again.
func (k *keyring) parse(data []byte) error {
	bad := func(kind fault.Kind, remedy, format string, args ...any) error {
		return &fault.Error{Op: "secret.Open", On: k.file, Kind: kind, Err: fmt.Errorf(format, args...), Remedy: remedy}
	}
	protected := bytes.HasPrefix(data, []byte(ageHeader))
	if protected {
		if len(k.passphrase) == 0 {
			return bad(fault.Denied, "give the daemon the passphrase, by secrets.passphrase of its configuration", "the key is protected by a passphrase")
		}
		id, err := age.NewScryptIdentity(string(k.passphrase))
		if err != nil {
			return bad(fault.Invalid, "", "passphrase: %w", err)
		}
		id.SetMaxWorkFactor(22)
		r, err := age.Decrypt(bytes.NewReader(data), id)
		if err != nil {
			return bad(fault.Denied, "", "the passphrase does not open the key")
		}
		plain, err := io.ReadAll(io.LimitReader(r, maxKeyFile))
		if err != nil {
			return bad(fault.Invalid, "", "the key file is damaged")
		}
		defer clear(plain)
		data = plain
	}
	ids, err := age.ParseIdentities(bytes.NewReader(data))
	if err != nil { // whose text may repeat a line
		return bad(fault.Invalid, "put the right key file back", "not a file of keys")
	}
	for _, one := range ids {
		id, ok := one.(*age.X25519Identity)
		if !ok {
			return bad(fault.Invalid, "", "a key of a kind that is not used here")
		}
		k.ids = append(k.ids, id)
	}
	if protected == (len(k.passphrase) > 0) {
		return nil
	}
	return k.write()
}

// write puts the keys in their file, for good.
func (k *keyring) write() error {
	var plain bytes.Buffer
	defer func() { clear(plain.Bytes()) }()
	plain.WriteString(keyComment)
	for _, id := range k.ids {
		plain.WriteString(id.String() + "\n")
	}
	data := plain.Bytes()
	if len(k.passphrase) > 0 {
		to, err := age.NewScryptRecipient(string(k.passphrase))
		if err != nil {
			return fmt.Errorf("passphrase: %w", err)
		}
		to.SetWorkFactor(scryptWork)
		data, err = seal(data, to)
		if err != nil {
			return fmt.Errorf("protect the key: %w", err)
		}
	}
	if err := replaceDurably(k.file, data); err != nil {
		return fmt.Errorf("write the key: %w", err)
	}
	return nil
}

// replaceDurably replaces a file in one step that a power cut does not undo.
func replaceDurably(name string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), ".tmp-*") // of mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), name); err != nil {
		return err
	}
	return dirs.Sync(filepath.Dir(name))
}

// seal encrypts a secret's value, bound to its name: a sealed value that somebody
// gives another name in the database cannot be opened.
func (k *keyring) seal(name string, value []byte) (string, error) {
	plain := append(append(make([]byte, 0, len(name)+1+len(value)), name...), 0)
	plain = append(plain, value...)
	defer clear(plain)
	b, err := seal(plain, k.ids[0].Recipient())
	if err != nil {
		return "", fmt.Errorf("seal secret %s: %w", name, err)
	}
	return base64.StdEncoding.EncodeToString(b), nil
}

func seal(plain []byte, to age.Recipient) ([]byte, error) {
	var b bytes.Buffer
	w, err := age.Encrypt(&b, to)
	if err == nil {
		_, err = w.Write(plain)
	}
	if err == nil {
		err = w.Close()
	}
	return b.Bytes(), err
}

// open is the inverse of seal. With only, the newest key alone is tried.
func (k *keyring) open(name, sealed string, only bool) (Value, error) {
	bad := func(why string) (Value, error) {
		return Value{}, fault.Newf(fault.Unavailable, "secret.Open", name, "%s", why)
	}
	b, err := base64.StdEncoding.DecodeString(sealed)
	if err != nil {
		return bad("what is sealed is damaged")
	}
	var ids []age.Identity
	for _, id := range k.ids {
		ids = append(ids, id)
	}
	if only {
		ids = ids[:1]
	}
	r, err := age.Decrypt(bytes.NewReader(b), ids...)
	if err != nil {
		return bad("it was sealed with another key, or is damaged")
	}
	plain := make([]byte, len(b)) // never grown, so that nothing is left behind
	n, err := io.ReadFull(r, plain)
	if err != io.ErrUnexpectedEOF && err != io.EOF {
		clear(plain)
		return bad("what is sealed is damaged")
	}
	prefix := name + "\x00"
	if !strings.HasPrefix(string(plain[:min(n, len(prefix))]), prefix) {
		clear(plain)
		return bad("what is sealed under this name belongs to another")
	}
	return NewValue(name, plain[len(prefix):n]), nil
}

// readPrivate reads a file that nobody but its owner, root or this process's
// user, may read. It is not followed if it is a link.
func readPrivate(name string, limit int64) ([]byte, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return readOwned(f, name, limit)
}

func readOwned(f *os.File, name string, limit int64) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	deny := func(remedy, format string, args ...any) error {
		return &fault.Error{Op: "secret.Read", On: name, Kind: fault.Denied, Err: fmt.Errorf(format, args...), Remedy: remedy}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, deny("", "not a regular file")
	case int(st.Uid) != os.Geteuid() && st.Uid != 0:
		return nil, deny("", "the file belongs to user %d", st.Uid)
	case st.Mode&0o077 != 0:
		return nil, deny("chmod 600 it", "others than its owner may use the file, mode %#o", st.Mode&0o777)
	case st.Size > limit:
		return nil, fault.Newf(fault.TooLarge, "secret.Read", name, "%d bytes are over the maximum of %d", st.Size, limit)
	}
	b := make([]byte, st.Size+1)
	n, err := io.ReadFull(f, b)
	switch err {
	case io.EOF, io.ErrUnexpectedEOF:
		return b[:n], nil
	case nil:
		clear(b)
		return nil, fault.Newf(fault.Conflict, "secret.Read", name, "the file grew while it was read")
	}
	return nil, &fs.PathError{Op: "read", Path: name, Err: err}
}

// ReadPassphrase returns the passphrase that from names: "fd:3", "file:/path" or
// "env:NAME", without a line break at its end. A variable is taken out of this
// process's environment, so that no program it starts inherits it.
func ReadPassphrase(from string) ([]byte, error) {
	const op, most = "secret.ReadPassphrase", 4096
	kind, where, _ := strings.Cut(from, ":")
	var b []byte
	switch kind {
	case "fd":
		n, err := strconv.ParseUint(where, 10, 16)
		if err != nil {
			return nil, fault.Fieldf(op, "secrets.passphrase", "%q is not the number of a descriptor", where)
		}
		f := os.NewFile(uintptr(n), from)
		defer f.Close()
		b, err = io.ReadAll(io.LimitReader(f, most))
		if err != nil {
			return nil, fmt.Errorf("read the passphrase from descriptor %d: %w", n, err)
		}
	case "file":
		var err error
		b, err = readPrivate(where, most)
		if err != nil {
			return nil, fmt.Errorf("read the passphrase: %w", err)
		}
	case "env":
		b = []byte(os.Getenv(where))
		if err := os.Unsetenv(where); err != nil {
			return nil, fmt.Errorf("read the passphrase: %w", err)
		}
	default:
		return nil, fault.Fieldf(op, "secrets.passphrase", "want fd:N, file:PATH or env:NAME")
	}
	b = bytes.TrimRight(b, "\r\n")
	if len(b) == 0 {
		return nil, fault.Fieldf(op, "secrets.passphrase", "the passphrase is empty")
	}
	return b, nil
}

// withNew returns a keyring with a new key before the others.
func (k *keyring) withNew() (*keyring, error) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, err
	}
	next := *k
	next.ids = append([]*age.X25519Identity{id}, k.ids...)
	return &next, nil
}
