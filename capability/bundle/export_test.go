package bundle

import (
	"bytes"
	"io"
)

// Rules returns all reasons.
func Rules() []Reason {
	var all []Reason
	for r := range rules {
		all = append(all, r)
	}
	return all
}

// Stage exports stage.
func (i *Installer) Stage(b *Bundle) (*Bundle, error) { return i.stage(b) }

// ParseSignature exports parseSignature.
var ParseSignature = parseSignature

// Sign signs s again after a test has changed it.
func (s *Signature) Sign(k *SecretKey) ([]byte, error) {
	if err := s.sign(k); err != nil {
		return nil, err
	}
	return s.text()
}

// Names returns the names of the entries of an archive.
func Names(archive []byte) (names []string, err error) {
	err = walkArchive(bytes.NewReader(archive), int64(len(archive)), func(e entry) error {
		names = append(names, e.name)
		_, err := io.Copy(io.Discard, e.r)
		return err
	})
	return names, err
}

// TarNames returns the names of the entries of an uncompressed tar.
func TarNames(plain []byte) (names []string, err error) {
	w := &walker{names: newNames(), left: maxBytes, visit: func(e entry) error {
		names = append(names, e.name)
		_, err := io.Copy(io.Discard, e.r)
		return err
	}}
	return names, w.tar(bytes.NewReader(plain))
}

// CheckName exports checkName.
var CheckName = checkName
