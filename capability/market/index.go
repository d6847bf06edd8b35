// Package market implements the index of bundles that third parties offer: a signed file next to
// the bundles, in a directory or on a web server.
//
// The index authenticates which bundles exist, so that none can be withheld. It does not vouch for
// the bundles: installing one requires trust in its publisher.
package market

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"glasshouse/capability/bundle"
	"glasshouse/capability/manifest"
)

const (
	// IndexFile is the file name of the index, in the directory of the bundles.
	IndexFile = "index.json"

	// Format is the prefix of the signed text.
	Format = "glasshouse-market/1"

	maxIndex   = 8 << 20
	maxOffers  = 20_000
	maxArchive = 256 << 20

	// skew is how far the clock of an index's creator may be ahead.
	skew = 10 * time.Minute
)

// An Index is the list of offers of a market at one time.
type Index struct {
	Format    string           `json:"format"`
	Serial    int64            `json:"serial"`  // never decreases
	Made      string           `json:"made"`    // RFC 3339, UTC
	Expires   string           `json:"expires"` // the index is rejected after this time
	Key       bundle.PublicKey `json:"key"`
	Offers    []Offer          `json:"offers"` // by name, newest version first
	Signature string           `json:"signature,omitempty"`
}

// An Offer is one version of a bundle.
type Offer struct {
	bundle.Metadata
	Digest string           `json:"digest"` // digest of the content
	Signer bundle.PublicKey `json:"signer"` // signer of the bundle
	File   string           `json:"file"`   // in the same directory as the index
	Size   int64            `json:"size"`
	SHA256 string           `json:"sha256"` // SHA-256 hash of the file
}

var (
	fileForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,199}$`)
	sumForm  = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// parse parses an index and verifies its signature by key. It does not check whether the index
// is current.
func parse(text []byte, key bundle.PublicKey) (*Index, error) {
	x := &Index{}
	if err := bundle.Exact(text, x); err != nil {
		return nil, refuse(BadIndex, "", "%w", err)
	}
	unsigned := *x
	unsigned.Signature = ""
	if x.Key != key || !key.VerifyJSON(unsigned, x.Signature) {
		return nil, refuse(WrongKey, "", "the signature is not by key %s", key.ID())
	}
	if err := x.check(); err != nil {
		return nil, refuse(BadIndex, "", "%w", err)
	}
	return x, nil
}

func (x *Index) check() error {
	if x.Format != Format {
		return fmt.Errorf("format is %q, want %s", x.Format, Format)
	}
	if x.Serial < 1 {
		return fmt.Errorf("invalid serial %d", x.Serial)
	}
	for _, text := range []string{x.Made, x.Expires} {
		if _, err := time.Parse(time.RFC3339, text); err != nil {
			return fmt.Errorf("invalid time %q", text)
		}
	}
	if len(x.Offers) > maxOffers {
		return fmt.Errorf("%d offers exceed the maximum of %d", len(x.Offers), maxOffers)
	}
	seen := map[[2]string]bool{}
	for _, o := range x.Offers {
		if err := o.check(); err != nil {
			return err
		}
		id := [2]string{o.Name, o.Version}
		if seen[id] {
			return fmt.Errorf("%s %s is listed twice", o.Name, o.Version)
		}
		seen[id] = true
	}
	return nil
}

// check refuses an offer whose file is not in the directory of the index.
func (o *Offer) check() error {
	if err := o.Metadata.Check(); err != nil {
		return err
	}
	switch {
	case !fileForm.MatchString(o.File) || !bundle.IsArchive(o.File):
		return fmt.Errorf("%s %s: %q is not a valid name of a packed bundle", o.Name, o.Version, o.File)
	case o.Size < 1 || o.Size > maxArchive:
		return fmt.Errorf("%s %s: invalid size %d", o.Name, o.Version, o.Size)
	case !sumForm.MatchString(o.SHA256) || !sumForm.MatchString(o.Digest):
		return fmt.Errorf("%s %s: the digest is missing", o.Name, o.Version)
	}
	return nil
}

// fresh returns an error if the index has expired or its creation time is in the future.
func (x *Index) fresh(now time.Time) error {
	made, err1 := time.Parse(time.RFC3339, x.Made)
	expires, err2 := time.Parse(time.RFC3339, x.Expires)
	switch {
	case err1 != nil || err2 != nil:
		return refuse(BadIndex, "", "%w", errors.Join(err1, err2))
	case made.After(now.Add(skew)):
		return refuse(NotYet, "", "at %s", x.Made)
	case !now.Before(expires):
		return refuse(Expired, "", "since %s", x.Expires)
	}
	return nil
}

// Search returns the newest version of every bundle whose name, publisher or description
// contains all words, ignoring case.
func (x *Index) Search(words ...string) []Offer {
	found := []Offer{}
	for _, o := range x.newest() {
		text := strings.ToLower(o.Name + "\n" + o.Publisher + "\n" + o.Description)
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, strings.ToLower(w)) }) {
			found = append(found, o)
		}
	}
	return found
}

// newest returns the newest version of each bundle, by name. It prefers releases over
// pre-releases.
func (x *Index) newest() []Offer {
	best := map[string]Offer{}
	for _, o := range x.Offers {
		if was, ok := best[o.Name]; !ok || o.newer(was) {
			best[o.Name] = o
		}
	}
	all := make([]Offer, 0, len(best))
	for _, o := range best {
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b Offer) int { return strings.Compare(a.Name, b.Name) })
	return all
}

func (o Offer) newer(was Offer) bool {
	if a, b := o.unfinished(), was.unfinished(); a != b {
		return b
	}
	return manifest.CompareVersions(o.Version, was.Version) > 0
}

// unfinished reports whether the version is a pre-release such as 1.0.0-rc.1.
func (o Offer) unfinished() bool { return semver.Prerelease("v"+o.Version) != "" }

// Find returns a version of a bundle; without a version, the newest.
func (x *Index) Find(name, version string) (Offer, error) {
	offers := x.Offers
	if version == "" {
		offers = x.newest()
	}
	i := slices.IndexFunc(offers, func(o Offer) bool { return o.Name == name && (version == "" || o.Version == version) })
	if i < 0 {
		return Offer{}, refuse(Absent, strings.TrimSpace(name+" "+version), "no such version is offered")
	}
	return offers[i], nil
}

// An Update is an installed bundle with a newer version on offer.
type Update struct {
	Name      string `json:"name"`
	Installed string `json:"installed"`
	Newest    Offer  `json:"newest"`
}

// Outdated returns the installed bundles for which the same publisher offers a newer version.
func (x *Index) Outdated(installed []bundle.Installed) []Update {
	updates := []Update{}
	newest := x.newest()
	for _, in := range installed {
		i := slices.IndexFunc(newest, func(o Offer) bool { return o.Name == in.Name })
		if i < 0 || newest[i].Publisher != in.Publisher {
			continue
		}
		if o := newest[i]; manifest.CompareVersions(o.Version, in.Version) > 0 {
			updates = append(updates, Update{Name: in.Name, Installed: in.Version, Newest: o})
		}
	}
	slices.SortFunc(updates, func(a, b Update) int { return cmp.Compare(a.Name, b.Name) })
	return updates
}
