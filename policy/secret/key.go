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

// A keyring holds the key that encrypts secrets, newest first. It has a second key only during
// a rotation.
type keyring struct {
	file       string
	passphrase []byte // encrypts the file, if not empty
	ids        []*age.X25519Identity
}

// scryptWork is log2 of the scrypt work factor. 18 costs about one second per guess.
var scryptWork = 18

const (
	maxKeyFile = 64 << 10
	ageHeader  = "age-encryption.org/"
	keyComment = "# The key that encrypts the secrets of this data directory.\n" +
		"# With this file and the database the secrets can be decrypted; without it they are lost.\n"
)

// openKeys reads the key file. If it does not exist and mayMake is set, it creates one.
func openKeys(file string, passphrase []byte, mayMake bool) (*keyring, error) {
	k := &keyring{file: file, passphrase: passphrase}
	data, err := readPrivate(file, maxKeyFile)
	switch {
	case errors.Is(err, fs.ErrNotExist) && mayMake:
		id, err := age.GenerateX25519Identity()
		if err != nil {
			return nil, fmt.Errorf("generate a key: %w", err)
		}
		k.ids = []*age.X25519Identity{id}
		return k, k.write()
	case errors.Is(err, fs.ErrNotExist):
		return nil, &fault.Error{Op: "secret.Open", On: file, Kind: fault.Unavailable,
			Err: errors.New("the database has encrypted secrets, but the key file is missing"), Remedy: "restore the key file, or delete the secrets from the database"}
	case err != nil:
		return nil, fmt.Errorf("read the key file: %w", err)
	}
	defer clear(data)
	return k, k.parse(data)
}

// parse parses the content of the key file. If it is not encrypted although a passphrase is
// set, or the reverse, the file is rewritten.
func (k *keyring) parse(data []byte) error {
	bad := func(kind fault.Kind, remedy, format string, args ...any) error {
		return &fault.Error{Op: "secret.Open", On: k.file, Kind: kind, Err: fmt.Errorf(format, args...), Remedy: remedy}
	}
	protected := bytes.HasPrefix(data, []byte(ageHeader))
	if protected {
		if len(k.passphrase) == 0 {
			return bad(fault.Denied, "set secrets.passphrase in the configuration", "the key file is encrypted with a passphrase")
		}
		id, err := age.NewScryptIdentity(string(k.passphrase))
		if err != nil {
			return bad(fault.Invalid, "", "read the passphrase: %w", err)
		}
		id.SetMaxWorkFactor(22)
		r, err := age.Decrypt(bytes.NewReader(data), id)
		if err != nil {
			return bad(fault.Denied, "", "wrong passphrase for the key file")
		}
		plain, err := io.ReadAll(io.LimitReader(r, maxKeyFile))
		if err != nil {
			return bad(fault.Invalid, "", "the key file is damaged")
		}
		defer clear(plain)
		data = plain
	}
	ids, err := age.ParseIdentities(bytes.NewReader(data))
	if err != nil { // err is dropped: it may quote a line with a key
		return bad(fault.Invalid, "restore the key file", "not a key file")
	}
	for _, one := range ids {
		id, ok := one.(*age.X25519Identity)
		if !ok {
			return bad(fault.Invalid, "", "unsupported type of key")
		}
		k.ids = append(k.ids, id)
	}
	if protected == (len(k.passphrase) > 0) {
		return nil
	}
	return k.write()
}

// write stores the keys durably in the file.
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
			return fmt.Errorf("read the passphrase: %w", err)
		}
		to.SetWorkFactor(scryptWork)
		data, err = seal(data, to)
		if err != nil {
			return fmt.Errorf("encrypt the key: %w", err)
		}
	}
	if err := replaceDurably(k.file, data); err != nil {
		return fmt.Errorf("write the key: %w", err)
	}
	return nil
}

// replaceDurably replaces a file atomically. When it returns, the change survives a power
// loss.
func replaceDurably(name string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), ".tmp-*") // created with mode 0600
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

// seal encrypts a value together with its name. A sealed value that is moved to another name
// in the database cannot be opened.
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

// open decrypts a sealed value. If only is set, only the newest key is tried.
func (k *keyring) open(name, sealed string, only bool) (Value, error) {
	bad := func(why string) (Value, error) {
		return Value{}, fault.Newf(fault.Unavailable, "secret.Open", name, "%s", why)
	}
	b, err := base64.StdEncoding.DecodeString(sealed)
	if err != nil {
		return bad("the sealed value is damaged")
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
		return bad("the value was sealed with another key, or is damaged")
	}
	plain := make([]byte, len(b)) // large enough: growing would leave copies in memory
	n, err := io.ReadFull(r, plain)
	if err != io.ErrUnexpectedEOF && err != io.EOF {
		clear(plain)
		return bad("the sealed value is damaged")
	}
	prefix := name + "\x00"
	if !strings.HasPrefix(string(plain[:min(n, len(prefix))]), prefix) {
		clear(plain)
		return bad("the sealed value belongs to another secret")
	}
	return NewValue(name, plain[len(prefix):n]), nil
}

// readPrivate reads a regular file that is owned by root or the user of this process and
// accessible to its owner only. It does not follow symbolic links.
func readPrivate(name string, limit int64) ([]byte, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return readPrivateFile(f, name, limit)
}

func readPrivateFile(f *os.File, name string, limit int64) ([]byte, error) {
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
		return nil, deny("run chmod 600 on the file", "the file is accessible to other users, mode %#o", st.Mode&0o777)
	case st.Size > limit:
		return nil, fault.Newf(fault.TooLarge, "secret.Read", name, "%d bytes exceed the maximum of %d", st.Size, limit)
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

// ReadPassphrase returns the passphrase from a source: "fd:3", "file:/path" or "env:NAME". A
// trailing line break is removed. A variable is removed from the environment, so that child
// processes do not inherit it.
func ReadPassphrase(from string) ([]byte, error) {
	const op, most = "secret.ReadPassphrase", 4096
	kind, where, _ := strings.Cut(from, ":")
	var b []byte
	switch kind {
	case "fd":
		n, err := strconv.ParseUint(where, 10, 16)
		if err != nil {
			return nil, fault.Fieldf(op, "secrets.passphrase", "%q is not a file descriptor number", where)
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

// withNew returns a keyring with a new key in front of the existing ones.
func (k *keyring) withNew() (*keyring, error) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, fmt.Errorf("generate a key: %w", err)
	}
	next := *k
	next.ids = append([]*age.X25519Identity{id}, k.ids...)
	return &next, nil
}
