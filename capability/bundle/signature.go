package bundle

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"glasshouse/policy/chain"
)

// Format is the first field of the signed statement. It prevents signatures for other purposes
// from being valid for a bundle.
const Format = "glasshouse-bundle/1"

// A File is a signed file of a bundle.
type File struct {
	Path   string `json:"path"`
	Mode   string `json:"mode"` // "0644", or "0755" if it is executable
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"` // hexadecimal
}

// A Signature is signature.json: the signed statement and its signature.
type Signature struct {
	Format    string    `json:"format"`
	Name      string    `json:"name"`
	Version   string    `json:"version"`
	Publisher string    `json:"publisher"`
	Key       PublicKey `json:"key"`
	Signed    string    `json:"signed"`            // RFC 3339, UTC
	Expires   string    `json:"expires,omitempty"` // RFC 3339, UTC
	Digest    string    `json:"digest"`            // digest of Files
	Files     []File    `json:"files"`             // ordered by path, without signature.json
	Signature string    `json:"signature,omitempty"`
}

// Digest returns the digest of a bundle's content: the hexadecimal SHA-256 of the canonical
// JSON of its files.
func Digest(files []File) (string, error) {
	text, err := canonicalJSON(files)
	if err != nil {
		return "", fmt.Errorf("encode the list of files: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

func canonicalJSON(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return chain.Canonical(text)
}

// statement returns the signed part: s without the signature.
func (s Signature) statement() Signature {
	s.Signature = ""
	return s
}

// sign signs s with k and sets its key.
func (s *Signature) sign(k *SecretKey) (err error) {
	s.Format, s.Key = Format, k.Public()
	if s.Digest, err = Digest(s.Files); err != nil {
		return err
	}
	s.Signature, err = k.SignJSON(s.statement())
	return err
}

// text formats s as an indented file.
func (s *Signature) text() ([]byte, error) {
	b, err := json.MarshalIndent(s, "", "  ")
	return append(b, '\n'), err
}

// parseSignature parses signature.json and verifies the signature with the key in it. It does
// not check whether the key is trusted.
func parseSignature(text []byte) (*Signature, error) {
	s := &Signature{}
	if err := Exact(text, s); err != nil {
		return nil, refuse(BadSignature, "", "%w", err)
	}
	if err := s.check(); err != nil {
		return nil, refuse(BadSignature, "", "%w", err)
	}
	if !s.Key.VerifyJSON(s.statement(), s.Signature) {
		return nil, refuse(WrongKey, "", "key %s did not sign this", s.Key.ID())
	}
	return s, nil
}

// check rejects invalid fields.
func (s *Signature) check() error {
	if s.Format != Format {
		return fmt.Errorf("format is %q, want %s", s.Format, Format)
	}
	if _, err := utc(s.Signed); err != nil {
		return fmt.Errorf("signed: %w", err)
	}
	if s.Expires != "" {
		if _, err := utc(s.Expires); err != nil {
			return fmt.Errorf("expires: %w", err)
		}
	}
	if len(s.Files) > maxFiles {
		return fmt.Errorf("%d files exceed the maximum of %d", len(s.Files), maxFiles)
	}
	if !slices.IsSortedFunc(s.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) }) {
		return errors.New("the files are not sorted")
	}
	seen := newNames()
	for _, f := range s.Files {
		if err := f.check(seen); err != nil {
			return err
		}
	}
	digest, err := Digest(s.Files)
	if err == nil && digest != s.Digest {
		err = errors.New("the digest does not match the files")
	}
	return err
}

func (f File) check(seen *names) error {
	if err := checkName(f.Path); err != nil {
		return err
	}
	if err := seen.add(f.Path, true); err != nil {
		return err
	}
	sum, err := hex.DecodeString(f.SHA256)
	switch {
	case f.Path == SignatureFile:
		return errors.New("the signature lists signature.json")
	case f.Mode != plainMode && f.Mode != execMode:
		return fmt.Errorf("%q has invalid mode %q", f.Path, f.Mode)
	case f.Size < 0 || f.Size > maxBytes:
		return fmt.Errorf("%q has invalid size %d", f.Path, f.Size)
	case err != nil || len(sum) != sha256.Size || strings.ToLower(f.SHA256) != f.SHA256:
		return fmt.Errorf("%q has no valid SHA-256", f.Path)
	}
	return nil
}

// utc parses a time in the only accepted format.
func utc(text string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || t.UTC().Format(time.RFC3339) != text {
		return time.Time{}, fmt.Errorf("%q is not a time such as 2026-01-31T12:00:00Z", text)
	}
	return t, nil
}

// Exact parses JSON into v and rejects JSON that v would not marshal to. This ensures that all
// readers interpret signed JSON alike: no unknown, duplicate or differently cased keys, and no
// omitted fields.
func Exact(text []byte, v any) error {
	given, err := chain.Canonical(text)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(given))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	back, err := canonicalJSON(v)
	if err != nil {
		return err
	}
	if !bytes.Equal(given, back) {
		return errors.New("the JSON differs from its canonical form")
	}
	return nil
}
