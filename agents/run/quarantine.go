package run

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"filippo.io/age"

	"glasshouse/capability/manifest"
	"glasshouse/fault"
	"glasshouse/internal/atomicfile"
	"glasshouse/policy/chain"
)

// A Sealed is an encrypted personal text, which only cleared readers may see until it expires.
// Other objects contain its handle instead.
type Sealed struct {
	Handle  string           `json:"handle"`
	Session string           `json:"session"`
	Labels  []manifest.Label `json:"labels"`
	Expires time.Time        `json:"expires"`
	Text    string           `json:"text"` // encrypted with age, in base64
}

// handlePrefix is the prefix of all handles.
const handlePrefix = "quarantine:"

// IsHandle reports whether a text has the form of a handle.
func IsHandle(text string) bool {
	rest, ok := strings.CutPrefix(text, handlePrefix)
	return ok && len(rest) == 26 && strings.Trim(rest, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

// personal reports whether data with these labels must be quarantined.
func personal(labels ...manifest.Label) bool {
	return !manifest.Redacted.Covers(manifest.Join(labels...))
}

// seal returns the stored form of a text: the text, or a handle if it is personal.
func (t *transaction) seal(text string, labels []manifest.Label) (string, error) {
	if !personal(labels...) || text == "" {
		return text, nil
	}
	s := Sealed{Handle: handlePrefix + rand.Text(), Session: t.local.id, Labels: labels, Expires: t.now.Add(t.cfg.TTL)}
	var err error
	s.Text, err = t.quarantine.encrypt(s.Handle, []byte(text))
	if err != nil {
		return "", err
	}
	t.c.Sealed = append(t.c.Sealed, s)
	return s.Handle, nil
}

// sealJSON is seal for a JSON value. The handle is a JSON string.
func (t *transaction) sealJSON(text json.RawMessage, labels []manifest.Label) (json.RawMessage, error) {
	if !personal(labels...) || len(text) == 0 {
		return text, nil
	}
	handle, err := t.seal(string(text), labels)
	return json.RawMessage(`"` + handle + `"`), err
}

// A Reader is the reader of a quarantined text.
type Reader struct {
	Name   string           // for the audit log
	Labels []manifest.Label // data classes that the reader is cleared for
}

// quarantine encrypts personal data.
type quarantine struct{ *core }

// Reveal returns the text of a handle to a cleared reader. It records the access or the
// refusal before it returns. Once a text has expired, Reveal returns fault.NotFound.
func (qu *quarantine) Reveal(ctx context.Context, handle string, who Reader) (string, error) {
	s, err := qu.sealed(ctx, handle)
	if err != nil {
		return "", err
	}
	if _, err := qu.cfg.Chain.Append(ctx, chain.Entry{
		Kind: chain.OperatorActed, Session: s.Session, Agent: actor(who.Name),
		Body: revealBody(handle, s.Labels, who.canRead(s)),
	}); err != nil {
		return "", fmt.Errorf("record the access to quarantined data: %w", err)
	}
	if !who.canRead(s) {
		return "", &fault.Error{Op: "run.Reveal", On: handle, Kind: fault.Denied,
			Err: fmt.Errorf("the data is labelled %s, which %s is not cleared for", manifest.Join(s.Labels...), who.Name), Remedy: "request access from an administrator"}
	}
	return qu.decrypt(s.Handle, s.Text)
}

func (who Reader) canRead(s Sealed) bool {
	return manifest.Covered(who.Labels, manifest.Join(s.Labels...))
}

func revealBody(handle string, labels []manifest.Label, allowed bool) json.RawMessage {
	text, err := json.Marshal(map[string]any{"action": "quarantine.reveal", "handle": handle, "labels": labels, "allowed": allowed})
	if err != nil {
		panic(err) // cannot fail: strings and a bool
	}
	return text
}

// Text returns a text as the agents of a session may read it. If text is a handle of this
// session and the session is cleared for its labels, Text returns the revealed text and
// records the access. Else it returns text itself.
func (qu *quarantine) Text(ctx context.Context, sid, text string) (string, error) {
	if !IsHandle(text) {
		return text, nil
	}
	s, err := qu.sealed(ctx, text)
	if fault.KindOf(err) == fault.NotFound {
		return text, nil
	}
	if err != nil {
		return "", err
	}
	of, err := qu.store.Session(ctx, sid)
	if err != nil {
		return "", fmt.Errorf("read the clearance of session %s: %w", sid, err)
	}
	who := Reader{Name: "session " + sid, Labels: of.Labels}
	if s.Session != sid || !who.canRead(s) {
		return text, nil
	}
	return qu.Reveal(ctx, text, who)
}

// sealed returns the entry of a handle unless it has expired.
func (qu *quarantine) sealed(ctx context.Context, handle string) (Sealed, error) {
	gone := fault.Newf(fault.NotFound, "run.Reveal", clip(handle, maxName), "the text does not exist or has expired")
	if !IsHandle(handle) {
		return Sealed{}, gone
	}
	s, err := qu.store.Sealed(ctx, handle)
	if fault.KindOf(err) == fault.NotFound || err == nil && !s.Expires.After(qu.Now()) {
		return Sealed{}, gone
	}
	return s, err
}

// encrypt encrypts a text together with name, so that decrypt accepts it under that name only.
func (qu *quarantine) encrypt(name string, text []byte) (string, error) {
	if qu.cfg.Key == nil {
		return "", fault.Cannot("run.encrypt", "personal data cannot be stored without an encryption key", "configure the quarantine key, or redact the data first")
	}
	var b bytes.Buffer
	w, err := age.Encrypt(&b, qu.cfg.Key.Recipient())
	if err == nil {
		_, err = w.Write(append([]byte(name+"\x00"), text...))
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return "", fmt.Errorf("seal %s: %w", name, err)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes()), nil
}

// decrypt is the inverse of encrypt.
func (qu *quarantine) decrypt(name, sealed string) (string, error) {
	if qu.cfg.Key == nil {
		return "", fault.Cannot("run.decrypt", "personal data cannot be read without the encryption key", "configure the quarantine key")
	}
	bad := fault.Newf(fault.Unavailable, "run.decrypt", name, "the data is damaged or was encrypted with a different key")
	b, err := base64.StdEncoding.DecodeString(sealed)
	if err != nil {
		return "", bad
	}
	r, err := age.Decrypt(bytes.NewReader(b), qu.cfg.Key)
	if err != nil {
		return "", bad
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		return "", bad
	}
	text, ok := strings.CutPrefix(string(plain), name+"\x00")
	if !ok {
		return "", bad
	}
	return text, nil
}

// digest returns the SHA-256 digest of a text.
func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// keyedDigest is like digest, but for personal texts: it uses a key, so that the text cannot be
// guessed from the digest.
func (qu *quarantine) keyedDigest(text []byte) string {
	if qu.cfg.Key == nil {
		return digest(text)
	}
	h := hmac.New(sha256.New, []byte(qu.cfg.Key.String()))
	h.Write(text)
	return "hmac:" + hex.EncodeToString(h.Sum(nil))
}

// ReadKey reads the key of the quarantine from a file with owner-only permissions. It
// generates the key if the file does not exist.
func ReadKey(file string) (*age.X25519Identity, error) {
	info, err := os.Lstat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return makeKey(file)
	}
	if err != nil {
		return nil, fmt.Errorf("read the quarantine key: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return nil, &fault.Error{Op: "run.ReadKey", On: file, Kind: fault.Denied,
			Err: fmt.Errorf("want a regular file without permissions for group and others, got mode %v", info.Mode()), Remedy: "run chmod 600 on the file"}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the quarantine key: %w", err)
	}
	key, err := age.ParseX25519Identity(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fault.Newf(fault.Invalid, "run.ReadKey", file, "the file does not contain an age identity")
	}
	return key, nil
}

func makeKey(file string) (*age.X25519Identity, error) {
	key, err := age.GenerateX25519Identity()
	if err == nil {
		err = atomicfile.Durable(file, []byte(key.String()+"\n"), 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("create the quarantine key: %w", err)
	}
	return key, nil
}

// Purge deletes expired texts of the quarantine, and returns their number. The Manager also
// does this every minute.
func (qu *quarantine) Purge(ctx context.Context) (int64, error) {
	return qu.store.Purge(ctx, qu.Now())
}
