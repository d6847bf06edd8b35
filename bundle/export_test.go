package bundle

import (
	"bytes"
	"io"
)

// Rules are all reasons that there are.
func Rules() []Reason {
	var all []Reason
	for r := range rules {
		all = append(all, r)
	}
	return all
}

// Stage puts the files of a bundle where they stay.
func (i *Installer) Stage(b *Bundle) (*Bundle, error) { return i.stage(b) }

// ParseSignature reads a signature.json.
var ParseSignature = parseSignature

// Sign signs again what a test has changed.
func (s *Signature) Sign(k *SecretKey) ([]byte, error) {
	if err := s.sign(k); err != nil {
		return nil, err
	}
	return s.text()
}

// Names of what walk hands on of an archive.
func Names(archive []byte) (names []string, err error) {
	err = walkArchive(bytes.NewReader(archive), int64(len(archive)), func(e entry) error {
		names = append(names, e.name)
		_, err := io.Copy(io.Discard, e.r)
		return err
	})
	return names, err
}

// TarNames are those of a tar that was not compressed.
func TarNames(plain []byte) (names []string, err error) {
	w := &walker{names: newNames(), left: maxBytes, visit: func(e entry) error {
		names = append(names, e.name)
		_, err := io.Copy(io.Discard, e.r)
		return err
	}}
	return names, w.tar(bytes.NewReader(plain))
}

// CheckName refuses what may not be a name in a bundle.
var CheckName = checkName
