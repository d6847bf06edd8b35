package bundle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"glasshouse/capability/skill"
	"glasshouse/policy/chain"
)

// Metadata is metadata.json: the description of a bundle and everything that its capabilities
// may need.
type Metadata struct {
	Name        string   `json:"name"`
	Version     string   `json:"version"`   // semver
	Publisher   string   `json:"publisher"` // name in the trust store
	Author      string   `json:"author,omitempty"`
	Description string   `json:"description,omitempty"`
	License     string   `json:"license,omitempty"`
	Homepage    string   `json:"homepage,omitempty"`
	Tier        Tier     `json:"tier"`
	Effects     []string `json:"effects,omitempty"`
	Hosts       []string `json:"hosts,omitempty"`
	Secrets     []string `json:"secrets,omitempty"`
	Expires     string   `json:"expires,omitempty"` // RFC 3339; the bundle cannot be installed afterwards
}

// A Tier bounds what a bundle may need and how far a publisher is trusted.
type Tier = skill.Tier

// The tiers, from lowest to highest.
const (
	Informational = skill.Informational // instructions without capabilities
	ReadOnly      = skill.ReadOnly      // capabilities without effects
	Standard      = skill.Standard      // effects as declared
	Elevated      = skill.Elevated      // files and state outside the jail, or two approvers required
)

func checkTier(t Tier) error {
	if !slices.Contains(skill.Tiers, t) {
		return fmt.Errorf("tier: %q is not one of %s", t, join(skill.Tiers))
	}
	return nil
}

var nameForm = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?$`)

// checkWord rejects invalid names of bundles and publishers. Names become parts of file names
// and command lines.
func checkWord(what, name string) error {
	if !nameForm.MatchString(name) || strings.Contains(name, "..") {
		return fmt.Errorf("%s: %q is not a valid name: use up to 64 of a-z, 0-9, and . _ - in between", what, name)
	}
	return nil
}

const maxText = 1000 // maximum bytes of a text in metadata.json

func checkVersion(v string) error {
	full := "v" + v
	if !semver.IsValid(full) || semver.Canonical(full)+semver.Build(full) != full {
		return fmt.Errorf("version: %q is not a version such as 1.4.2", v)
	}
	return nil
}

// parseMetadata parses metadata.json. Unknown keys are errors: a misspelt key would be a
// missing declaration.
func parseMetadata(text []byte) (Metadata, error) {
	var m Metadata
	canonical, err := chain.Canonical(text)
	if err != nil {
		return m, err
	}
	if err := knownKeys(canonical); err != nil {
		return m, err
	}
	if err := json.Unmarshal(canonical, &m); err != nil {
		return m, fmt.Errorf("decode the metadata: %w", err)
	}
	return m, m.Check()
}

// Check rejects invalid metadata.
func (m *Metadata) Check() error {
	if err := checkWord("name", m.Name); err != nil {
		return err
	}
	if err := checkWord("publisher", m.Publisher); err != nil {
		return err
	}
	if err := checkVersion(m.Version); err != nil {
		return err
	}
	if err := checkTier(m.Tier); err != nil {
		return err
	}
	for _, text := range slices.Concat([]string{m.Author, m.Description, m.License, m.Homepage}, m.Effects, m.Hosts, m.Secrets) {
		if len(text) > maxText || strings.ContainsFunc(text, hidden) || strings.Contains(text, "\n") {
			return fmt.Errorf("%.40q is longer than %d bytes or has unprintable characters", text, maxText)
		}
	}
	if m.Expires != "" {
		if _, err := time.Parse(time.RFC3339, m.Expires); err != nil {
			return fmt.Errorf("expires: %q is not a time such as 2026-01-31T12:00:00Z", m.Expires)
		}
	}
	return nil
}

var metadataKeys = []string{
	"author", "description", "effects", "expires", "homepage", "hosts", "license",
	"name", "publisher", "secrets", "tier", "version",
}

func knownKeys(object []byte) error {
	var given map[string]json.RawMessage
	if err := json.NewDecoder(bytes.NewReader(object)).Decode(&given); err != nil {
		return err
	}
	for k := range given {
		if !slices.Contains(metadataKeys, k) {
			return fmt.Errorf("unknown key %q; known keys: %s", k, join(metadataKeys))
		}
	}
	return nil
}

func words[S ~string](all []S) []string {
	plain := make([]string, len(all))
	for i, w := range all {
		plain[i] = string(w)
	}
	return plain
}

func join[S ~string](all []S) string { return strings.Join(words(all), ", ") }
