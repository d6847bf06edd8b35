// Package bundle implements signed packages of skills and capabilities: archive formats,
// signatures, trust, review and installation.
//
// A bundle is a directory, or a zip or tar.gz archive of it. Bundles are untrusted input:
// reading one has no side effects, and every rejection has a Reason.
package bundle

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"glasshouse/capability/manifest"
	"glasshouse/capability/skill"
	"glasshouse/fault"
)

// Names with a meaning in a bundle. All other files are data for the capabilities.
const (
	SignatureFile   = "signature.json"
	MetadataFile    = "metadata.json"
	capabilitiesDir = "capabilities"
)

// SkillFiles are the possible names of a bundle's skill file. A bundle has at most one.
var SkillFiles = []string{"skill.yaml", "SKILL.md"}

// Limits of the files held in memory.
const (
	maxSignature = 4 << 20
	maxMetadata  = 64 << 10
	maxDocument  = 1 << 20 // a skill or a manifest
	maxKept      = 16 << 20
)

const (
	plainMode = "0644"
	execMode  = "0755"
)

// A Bundle is a bundle that was read. Its files match the signature by the key that
// signature.json names. Trust.Check decides whether that key is trusted.
type Bundle struct {
	Metadata     Metadata
	Signature    Signature
	SkillFile    string // empty if there is no skill
	Skill        []byte // content of SkillFile
	Capabilities []*manifest.Capability

	skill *skill.Skill
	path  string // the directory or archive it was read from
	text  []byte // content of signature.json
}

// Digest identifies the content: two bundles with equal digests have the same files,
// regardless of the signer.
func (b *Bundle) Digest() string { return b.Signature.Digest }

// Expires returns the time after which the bundle cannot be installed or called; zero means
// never.
func (b *Bundle) Expires() time.Time {
	var first time.Time
	for _, text := range []string{b.Metadata.Expires, b.Signature.Expires} {
		t, err := time.Parse(time.RFC3339, text)
		if err == nil && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}

// Open reads the bundle at path. An error for a rejected bundle has a Reason.
func Open(path string) (*Bundle, error) {
	b, err := open(path)
	if err != nil {
		return nil, on(path, err)
	}
	return b, nil
}

// on adds the name of the bundle at path to an error.
func on(path string, err error) error {
	name := filepath.Base(path)
	if e, ok := errors.AsType[*fault.Error](err); ok && e.On == "" && ReasonOf(err) != "" {
		named := *e
		named.On = name
		return &named
	}
	// Avoid repeating the full path of a PathError.
	if e, ok := errors.AsType[*fs.PathError](err); ok && e.Path == path {
		err = e.Err
	}
	return fmt.Errorf("bundle %s: %w", name, err)
}

// name returns the file name of the bundle, for errors. The directory may be a temporary one
// of the daemon, which is meaningless to the caller.
func (b *Bundle) name() string { return filepath.Base(b.path) }

func open(path string) (*Bundle, error) {
	c, err := scan(path)
	if err != nil {
		return nil, err
	}
	text, ok := c.kept[SignatureFile]
	if !ok {
		return nil, refuse(Unsigned, "", "%s is missing", SignatureFile)
	}
	s, err := parseSignature(text)
	if err != nil {
		return nil, err
	}
	if err := s.compare(c.files); err != nil {
		return nil, err
	}
	b := &Bundle{Signature: *s, path: path, text: text}
	if err := b.read(c); err != nil {
		return nil, err
	}
	for _, w := range []struct{ what, signed, claimed string }{
		{"name", s.Name, b.Metadata.Name}, {"version", s.Version, b.Metadata.Version}, {"publisher", s.Publisher, b.Metadata.Publisher},
	} {
		if w.signed != w.claimed {
			return nil, refuse(OtherContent, "", "the signed %s is %q, but %s has %q", w.what, w.signed, MetadataFile, w.claimed)
		}
	}
	return b, nil
}

// contents lists the files of a directory or archive.
type contents struct {
	files []File            // ordered by path, without signature.json
	kept  map[string][]byte // content of the parsed files, by path
}

// scan reads a whole bundle and keeps the files that have a meaning.
func scan(path string) (*contents, error) {
	c := &contents{kept: map[string][]byte{}}
	room := maxKept
	err := walk(path, func(e entry) error {
		sum := sha256.New()
		r := io.TeeReader(e.r, sum)
		var kept []byte
		if most := keptBytes(e.name); most > 0 {
			var err error
			if kept, err = io.ReadAll(io.LimitReader(r, int64(min(most, room))+1)); err != nil {
				return err
			}
			if len(kept) > most || len(kept) > room {
				return refuse(TooLarge, "", "%s has more than %d bytes", e.name, min(most, room))
			}
			room -= len(kept)
			c.kept[e.name] = kept
		}
		more, err := io.Copy(io.Discard, r)
		if err != nil {
			return err
		}
		if e.name != SignatureFile {
			c.files = append(c.files, File{
				Path: e.name, Mode: e.mode(), Size: int64(len(kept)) + more, SHA256: hex.EncodeToString(sum.Sum(nil)),
			})
		}
		return nil
	})
	slices.SortFunc(c.files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return c, err
}

// keptBytes returns the maximum size of a parsed file, or 0 for other files.
func keptBytes(name string) int {
	switch {
	case name == SignatureFile:
		return maxSignature
	case name == MetadataFile:
		return maxMetadata
	case slices.Contains(SkillFiles, name), isManifest(name):
		return maxDocument
	}
	return 0
}

// isManifest reports whether a file contains capability manifests.
func isManifest(name string) bool {
	return path.Dir(name) == capabilitiesDir && (path.Ext(name) == ".rtfs" || path.Ext(name) == ".json")
}

// compare rejects files that differ from the signed ones.
func (s *Signature) compare(files []File) error {
	signed := map[string]File{}
	for _, f := range s.Files {
		signed[f.Path] = f
	}
	for _, f := range files {
		was, ok := signed[f.Path]
		if !ok {
			return refuse(Unlisted, "", "%q was not signed", f.Path)
		}
		if err := was.same(f); err != nil {
			return err
		}
		delete(signed, f.Path)
	}
	for _, f := range s.Files {
		if _, missing := signed[f.Path]; missing {
			return refuse(Missing, "", "signed file %q is missing", f.Path)
		}
	}
	return nil
}

// same rejects a file that differs from f.
func (f File) same(now File) error {
	switch {
	case f.Size != now.Size || f.SHA256 != now.SHA256:
		return refuse(Tampered, "", "the content of %q differs from the signed one", f.Path)
	case f.Mode != now.Mode:
		return refuse(ModeChanged, "", "%q was signed with mode %s but has mode %s", f.Path, f.Mode, now.Mode)
	}
	return nil
}

// read parses the files that have a meaning.
func (b *Bundle) read(c *contents) (err error) {
	text, ok := c.kept[MetadataFile]
	if !ok {
		return refuse(BadMetadata, "", "%s is missing in the root directory", MetadataFile)
	}
	if b.Metadata, err = parseMetadata(text); err != nil {
		return refuse(BadMetadata, "", "%w", err)
	}
	for _, name := range SkillFiles {
		text, ok := c.kept[name]
		if ok && b.SkillFile != "" {
			return refuse(BadSkill, "", "%s and %s both exist", b.SkillFile, name)
		}
		if ok {
			b.SkillFile, b.Skill = name, text
		}
	}
	if b.SkillFile != "" {
		if b.skill, err = skill.Read(b.SkillFile, b.Skill); err != nil {
			return refuse(BadSkill, "", "%w", err)
		}
	}
	if err := b.readCapabilities(c); err != nil {
		return err
	}
	if b.SkillFile == "" && len(b.Capabilities) == 0 {
		return refuse(BadMetadata, "", "it has neither a skill nor a capability")
	}
	return nil
}

func (b *Bundle) readCapabilities(c *contents) error {
	from := map[string]string{}
	for _, f := range c.files {
		if !isManifest(f.Path) {
			continue
		}
		all, err := manifest.Read(f.Path, c.kept[f.Path])
		if err != nil {
			return refuse(BadCapability, "", "%w", err)
		}
		if len(all) == 0 {
			return refuse(BadCapability, "", "%s has no capability", f.Path)
		}
		for _, m := range all {
			if other, ok := from[m.ID]; ok {
				return refuse(BadCapability, "", "%s is declared in %s and in %s", m.ID, other, f.Path)
			}
			from[m.ID] = f.Path
		}
		b.Capabilities = append(b.Capabilities, all...)
	}
	slices.SortFunc(b.Capabilities, func(x, y *manifest.Capability) int { return strings.Compare(x.ID, y.ID) })
	return nil
}
