// Package bundle is signed packages of skills and capabilities: how they are
// packed, whose word is taken for them, what an approver is shown, and how they
// come to be installed.
//
// A bundle is a directory, or a zip or tar.gz of it. It is made by strangers:
// reading one touches nothing, and every refusal has a Reason of its own.
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

	"glasshouse/fault"
	"glasshouse/manifest"
	"glasshouse/skill"
)

// The files of a bundle that have a meaning. All others are there for the
// capabilities.
const (
	SignatureFile   = "signature.json"
	MetadataFile    = "metadata.json"
	capabilitiesDir = "capabilities"
)

// SkillFiles are the names that a bundle's skill may have. There is at most one.
var SkillFiles = []string{"skill.yaml", "SKILL.md"}

// What of a bundle is held in memory, at the most.
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

// A Bundle is one that was read: its files are those that were signed, by the key
// that signature.json names. Whether that key counts, a Trust says.
type Bundle struct {
	Metadata     Metadata
	Signature    Signature
	SkillFile    string // empty: it has none
	Skill        []byte // its text
	Capabilities []*manifest.Capability

	skill *skill.Skill
	path  string // where it was read from
	text  []byte // signature.json as it is there
}

// Digest names the content: two bundles with one digest have the same files,
// whoever signed them.
func (b *Bundle) Digest() string { return b.Signature.Digest }

// Expires is when it is not installed any more, nor called; zero is never.
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

// Open reads the bundle at path. A refusal has a Reason.
func Open(path string) (*Bundle, error) {
	b, err := open(path)
	if err != nil {
		return nil, on(path, err)
	}
	return b, nil
}

// on puts the name of the bundle at path into an error.
func on(path string, err error) error {
	name := filepath.Base(path)
	if e, ok := errors.AsType[*fault.Error](err); ok && e.On == "" && ReasonOf(err) != "" {
		named := *e
		named.On = name
		return &named
	}
	// The error of a system call names the whole path.
	if e, ok := errors.AsType[*fs.PathError](err); ok && e.Path == path {
		err = e.Err
	}
	return fmt.Errorf("bundle %s: %w", name, err)
}

// name is what errors call the bundle: its file name. The directory can be a temporary
// one of the daemon, which means nothing to the caller.
func (b *Bundle) name() string { return filepath.Base(b.path) }

func open(path string) (*Bundle, error) {
	c, err := scan(path)
	if err != nil {
		return nil, err
	}
	text, ok := c.kept[SignatureFile]
	if !ok {
		return nil, refuse(Unsigned, "", "there is no %s", SignatureFile)
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
	for _, w := range []struct{ what, signed, said string }{
		{"name", s.Name, b.Metadata.Name}, {"version", s.Version, b.Metadata.Version}, {"publisher", s.Publisher, b.Metadata.Publisher},
	} {
		if w.signed != w.said {
			return nil, refuse(OtherContent, "", "the %s %q was signed, and %s says %q", w.what, w.signed, MetadataFile, w.said)
		}
	}
	return b, nil
}

// contents is what a directory or archive has.
type contents struct {
	files []File            // ordered by path, without signature.json
	kept  map[string][]byte // what is read here, by path
}

// scan reads all of a bundle, and keeps of it what has a meaning.
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

// keptBytes is how many bytes a file may have that is read here, and 0 for others.
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

// isManifest is whether a file has manifests of capabilities.
func isManifest(name string) bool {
	return path.Dir(name) == capabilitiesDir && (path.Ext(name) == ".rtfs" || path.Ext(name) == ".json")
}

// compare refuses files that are not just those that were signed.
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
			return refuse(Missing, "", "%q was signed, and is not there", f.Path)
		}
	}
	return nil
}

// same refuses a file that is not f.
func (f File) same(now File) error {
	switch {
	case f.Size != now.Size || f.SHA256 != now.SHA256:
		return refuse(Tampered, "", "%q is not what was signed", f.Path)
	case f.Mode != now.Mode:
		return refuse(ModeChanged, "", "%q was signed with mode %s, and has %s", f.Path, f.Mode, now.Mode)
	}
	return nil
}

// read reads what of the contents has a meaning.
func (b *Bundle) read(c *contents) (err error) {
	text, ok := c.kept[MetadataFile]
	if !ok {
		return refuse(BadMetadata, "", "there is no %s at its top", MetadataFile)
	}
	if b.Metadata, err = parseMetadata(text); err != nil {
		return refuse(BadMetadata, "", "%w", err)
	}
	for _, name := range SkillFiles {
		text, ok := c.kept[name]
		if ok && b.SkillFile != "" {
			return refuse(BadSkill, "", "%s and %s are both there", b.SkillFile, name)
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
				return refuse(BadCapability, "", "%s is in %s and in %s", m.ID, other, f.Path)
			}
			from[m.ID] = f.Path
		}
		b.Capabilities = append(b.Capabilities, all...)
	}
	slices.SortFunc(b.Capabilities, func(x, y *manifest.Capability) int { return strings.Compare(x.ID, y.ID) })
	return nil
}
