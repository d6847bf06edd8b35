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

	"glasshouse/chain"
)

// Format is the first word of what is signed. A signature of something else
// cannot pass for one of a bundle.
const Format = "glasshouse-bundle/1"

// A File is a file of a bundle, as it is signed.
type File struct {
	Path   string `json:"path"`
	Mode   string `json:"mode"` // "0644", or "0755" if it may be executed
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"` // in hexadecimal
}

// A Signature is signature.json: all that is signed, and the signature over it.
type Signature struct {
	Format    string    `json:"format"`
	Name      string    `json:"name"`
	Version   string    `json:"version"`
	Publisher string    `json:"publisher"`
	Key       PublicKey `json:"key"`
	Signed    string    `json:"signed"`            // RFC 3339, UTC
	Expires   string    `json:"expires,omitempty"` // RFC 3339, UTC
	Digest    string    `json:"digest"`            // of Files
	Files     []File    `json:"files"`             // ordered by path, without signature.json
	Signature string    `json:"signature,omitempty"`
}

// Digest names a content: the SHA-256, in hexadecimal, of the canonical JSON of
// its files.
func Digest(files []File) (string, error) {
	text, err := canonicalJSON(files)
	if err != nil {
		return "", err
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

// statement is what the key signs: all of s but the signature.
func (s Signature) statement() Signature {
	s.Signature = ""
	return s
}

// sign signs s with a key, which it names.
func (s *Signature) sign(k *SecretKey) (err error) {
	s.Format, s.Key = Format, k.Public()
	if s.Digest, err = Digest(s.Files); err != nil {
		return err
	}
	s.Signature, err = k.SignJSON(s.statement())
	return err
}

// text is s as a file, for people too.
func (s *Signature) text() ([]byte, error) {
	b, err := json.MarshalIndent(s, "", "  ")
	return append(b, '\n'), err
}

// parseSignature reads a signature.json, and verifies that the key in it signed it.
// Whether anybody trusts that key is another question.
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

// check is whether s says only what a signature.json can say.
func (s *Signature) check() error {
	if s.Format != Format {
		return fmt.Errorf("its format is %q, not %s", s.Format, Format)
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
		return fmt.Errorf("it has %d files, more than %d", len(s.Files), maxFiles)
	}
	if !slices.IsSortedFunc(s.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) }) {
		return errors.New("its files are not in order")
	}
	seen := newNames()
	for _, f := range s.Files {
		if err := f.check(seen); err != nil {
			return err
		}
	}
	digest, err := Digest(s.Files)
	if err == nil && digest != s.Digest {
		err = errors.New("its digest is not that of its files")
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
		return errors.New("it lists itself")
	case f.Mode != plainMode && f.Mode != execMode:
		return fmt.Errorf("%q has the mode %q", f.Path, f.Mode)
	case f.Size < 0 || f.Size > maxBytes:
		return fmt.Errorf("%q has the size %d", f.Path, f.Size)
	case err != nil || len(sum) != sha256.Size || strings.ToLower(f.SHA256) != f.SHA256:
		return fmt.Errorf("%q has no SHA-256 in hexadecimal", f.Path)
	}
	return nil
}

// utc reads a time in the only form that is signed.
func utc(text string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || t.UTC().Format(time.RFC3339) != text {
		return time.Time{}, fmt.Errorf("%q is not a time such as 2026-01-31T12:00:00Z", text)
	}
	return t, nil
}

// Exact reads JSON into v and refuses what v would not write back: what is signed
// must be read by everybody alike, so there are no unknown keys, none twice or in
// another case, and nothing left out that has a place.
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
		return errors.New("it is written in another way than it is signed")
	}
	return nil
}
