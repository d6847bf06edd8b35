package bundle

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	udiff "github.com/aymanbagabas/go-udiff"

	"glasshouse/capability/manifest"
	safetext "glasshouse/internal/text"
)

const (
	maxSide  = 256 << 10 // maximum bytes of a compared file
	maxSides = 4 << 20   // maximum bytes of all compared files of one review
	maxDiff  = 64 << 10  // maximum bytes of one diff
	maxDiffs = 1 << 20   // maximum bytes of all diffs of one review
)

// A Review is the information for the approver of a bundle: everything that it may do, and the
// differences from the installed version.
type Review struct {
	Name      string `json:"name"`
	Version   string `json:"version"`
	Publisher string `json:"publisher"`
	Key       string `json:"key"` // ID of the signing key
	Digest    string `json:"digest"`
	Tier      Tier   `json:"tier"`

	// Replaces and ReplacesDigest describe the installed version. They are empty if there is
	// none.
	Replaces       string `json:"replaces,omitempty"`
	ReplacesDigest string `json:"replaces_digest,omitempty"`

	Effects []string `json:"effects"`
	Hosts   []string `json:"hosts"`
	Secrets []string `json:"secrets"`
	Input   []string `json:"input"`  // data classes of the input
	Output  []string `json:"output"` // data classes of the output

	// Widens lists the additional permissions compared with the installed version, or all
	// permissions if no version is installed.
	Widens       []string           `json:"widens"`
	Capabilities []CapabilityReview `json:"capabilities"`
	Files        []FileReview       `json:"files"` // files that differ
}

// Kinds of change of a capability or a file.
const (
	Added   = "added"
	Removed = "removed"
	Changed = "changed"
	Same    = "same"
)

// A CapabilityReview describes a capability in a Review.
type CapabilityReview struct {
	ID      string   `json:"id"`
	Change  string   `json:"change"` // Added, Removed, Changed, Same
	Version string   `json:"version,omitempty"`
	Runtime string   `json:"runtime"`
	Tier    string   `json:"tier"` // required approval
	PerUse  bool     `json:"per_use"`
	Effects []string `json:"effects"`
	Hosts   []string `json:"hosts"`
	Secrets []string `json:"secrets"`
	Widens  []string `json:"widens,omitempty"`
}

// A FileReview describes a file that differs.
type FileReview struct {
	Path   string `json:"path"`
	Change string `json:"change"` // Added, Removed, Changed
	Mode   string `json:"mode,omitempty"`
	Was    int64  `json:"was"` // bytes
	Now    int64  `json:"now"`
	Diff   string `json:"diff,omitempty"`    // in unified diff format; unprintable characters are escaped
	NoDiff string `json:"no_diff,omitempty"` // why Diff is empty
}

// NewReview compares a bundle with the installed one, which may be nil. Both must be
// directories.
func NewReview(old, b *Bundle) (*Review, error) {
	r := &Review{
		Name: b.Metadata.Name, Version: b.Metadata.Version, Publisher: b.Metadata.Publisher,
		Key: b.Signature.Key.ID(), Digest: b.Digest(), Tier: b.Metadata.Tier, Widens: []string{},
	}
	if old != nil {
		r.Replaces, r.ReplacesDigest = old.Metadata.Version, old.Digest()
	}
	for _, c := range b.Capabilities {
		r.Effects = append(r.Effects, c.Effects...)
		r.Hosts = append(r.Hosts, c.Network.Hosts...)
		r.Secrets = append(r.Secrets, c.Secrets...)
		r.Input = append(r.Input, words(c.DataClasses.Input)...)
		r.Output = append(r.Output, words(c.DataClasses.Output)...)
	}
	for _, all := range []*[]string{&r.Effects, &r.Hosts, &r.Secrets, &r.Input, &r.Output} {
		*all = append([]string{}, unique(*all)...)
	}
	r.capabilities(old, b)
	return r, r.files(old, b)
}

func (r *Review) capabilities(old, b *Bundle) {
	was := map[string]*manifest.Capability{}
	if old != nil {
		for _, c := range old.Capabilities {
			was[c.ID] = c
		}
	}
	r.Capabilities = []CapabilityReview{}
	for _, c := range b.Capabilities {
		v := newCapabilityReview(c, Added)
		before := was[c.ID]
		if before != nil {
			v.Change = Same
			if before.Source != c.Source {
				v.Change = Changed
			}
		}
		v.Widens = manifest.Widens(before, c)
		delete(was, c.ID)
		for _, w := range v.Widens {
			r.Widens = append(r.Widens, c.ID+": "+w)
		}
		r.Capabilities = append(r.Capabilities, v)
	}
	for _, c := range was {
		r.Capabilities = append(r.Capabilities, newCapabilityReview(c, Removed))
	}
	slices.SortFunc(r.Capabilities, func(a, b CapabilityReview) int { return strings.Compare(a.ID, b.ID) })
}

func newCapabilityReview(c *manifest.Capability, change string) CapabilityReview {
	return CapabilityReview{
		ID: c.ID, Change: change, Version: c.Version, Runtime: string(c.Runtime.Type), Tier: string(c.EffectiveTier()), PerUse: c.Approval.PerUse,
		Effects: unique(append([]string{}, c.Effects...)),
		Hosts:   unique(append([]string{}, c.Network.Hosts...)),
		Secrets: unique(append([]string{}, c.Secrets...)),
	}
}

// files compares the files. The files that define the bundle come first.
func (r *Review) files(old, b *Bundle) error {
	was := map[string]File{}
	if old != nil {
		for _, f := range old.Signature.Files {
			was[f.Path] = f
		}
	}
	r.Files = []FileReview{}
	for _, f := range b.Signature.Files {
		before, there := was[f.Path]
		delete(was, f.Path)
		switch {
		case !there:
			r.Files = append(r.Files, FileReview{Path: f.Path, Change: Added, Mode: f.Mode, Now: f.Size})
		case before != f:
			r.Files = append(r.Files, FileReview{Path: f.Path, Change: Changed, Mode: f.Mode, Was: before.Size, Now: f.Size})
		}
	}
	for _, f := range was {
		r.Files = append(r.Files, FileReview{Path: f.Path, Change: Removed, Was: f.Size})
	}
	slices.SortFunc(r.Files, func(x, y FileReview) int {
		if a, b := rank(x.Path), rank(y.Path); a != b {
			return a - b
		}
		return strings.Compare(x.Path, y.Path)
	})
	return r.diffs(old, b)
}

func rank(path string) int {
	switch {
	case path == MetadataFile:
		return 0
	case slices.Contains(SkillFiles, path):
		return 1
	case isManifest(path):
		return 2
	}
	return 3
}

// diffs adds diffs until the limits are reached.
func (r *Review) diffs(old, b *Bundle) error {
	now, err := os.OpenRoot(b.path)
	if err != nil {
		return err
	}
	defer now.Close()
	var was *os.Root
	if old != nil {
		if was, err = os.OpenRoot(old.path); err != nil {
			return err
		}
		defer was.Close()
	}
	read, written := int64(0), 0
	for i := range r.Files {
		f := &r.Files[i]
		read += f.Was + f.Now
		switch {
		case f.Was > maxSide || f.Now > maxSide:
			f.NoDiff = "too large to compare"
			read -= f.Was + f.Now
		case read > maxSides || written > maxDiffs:
			f.NoDiff = "omitted: too many differences"
		default:
			if err := f.diff(was, now); err != nil {
				return fmt.Errorf("compare %s: %w", f.Path, err)
			}
			written += len(f.Diff)
		}
	}
	return nil
}

// diff compares one file. Both roots contain verified files.
func (f *FileReview) diff(was, now *os.Root) (err error) {
	before, after := "", ""
	from, to := "a/"+f.Path, "b/"+f.Path
	if f.Change == Added {
		from = os.DevNull
	} else if before, err = readText(was, f.Path); err != nil {
		return err
	}
	if f.Change == Removed {
		to = os.DevNull
	} else if after, err = readText(now, f.Path); err != nil {
		return err
	}
	if !isText(before) || !isText(after) {
		f.NoDiff = "not text"
		return nil
	}
	text, err := udiff.ToUnified(from, to, before, udiff.Lines(before, after), udiff.DefaultContextLines)
	if err != nil {
		return err
	}
	f.Diff = safetext.ForTerminal(text)
	if len(f.Diff) > maxDiff {
		f.Diff, f.NoDiff = "", "the diff is too large"
	}
	return nil
}

func readText(root *os.Root, name string) (string, error) {
	f, err := root.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSide))
	return string(b), err
}

func isText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

func hidden(r rune) bool { return r != '\n' && r != '\t' && r != '\u00a0' && safetext.Hidden(r) }

// Text formats the review for a terminal.
func (r *Review) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s by %s, signed by key %s\n", r.Name, r.Version, r.Publisher, r.Key)
	if r.Replaces != "" {
		fmt.Fprintf(&b, "replaces %s\n", r.Replaces)
	}
	fmt.Fprintf(&b, "digest   %s\n", r.Digest)
	fmt.Fprintf(&b, "tier     %s\n", r.Tier)
	for _, l := range []struct {
		what  string
		words []string
	}{{"effects", r.Effects}, {"hosts", r.Hosts}, {"secrets", r.Secrets}, {"takes", r.Input}, {"gives", r.Output}} {
		fmt.Fprintf(&b, "%-8s %s\n", l.what, list(l.words))
	}
	for _, c := range r.Capabilities {
		fmt.Fprintf(&b, "\n%s (%s): %s, tier %s%s, effects %s, hosts %s, secrets %s\n",
			c.ID, c.Change, c.Runtime, c.Tier, perUse(c.PerUse), list(c.Effects), list(c.Hosts), list(c.Secrets))
		for _, w := range c.Widens {
			fmt.Fprintf(&b, "  + %s\n", w)
		}
	}
	for _, f := range r.Files {
		fmt.Fprintf(&b, "\n%s %s: %d bytes, were %d", f.Change, f.Path, f.Now, f.Was)
		if f.NoDiff != "" {
			fmt.Fprintf(&b, " (%s)", f.NoDiff)
		}
		fmt.Fprintf(&b, "\n%s", f.Diff)
	}
	return safetext.ForTerminal(b.String())
}

func perUse(each bool) string {
	if each {
		return ", approval per use"
	}
	return ""
}

func list(words []string) string {
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ", ")
}
