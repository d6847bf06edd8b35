package bundle

import (
	"slices"
	"strings"

	"glasshouse/capability/manifest"
	"glasshouse/capability/skill"
)

// CheckClaims rejects a bundle whose capabilities need more than metadata.json declares,
// because approvers rely on the declaration.
func (b *Bundle) CheckClaims() error {
	m := b.Metadata
	var effects, hosts, secrets []string
	for _, c := range b.Capabilities {
		if need := skill.TierOf(c); !m.Tier.Covers(need) {
			return refuse(Exceeds, b.name(), "%s is of tier %s, but the bundle declares %s", c.ID, need, m.Tier)
		}
		effects = append(effects, c.Effects...)
		hosts = append(hosts, c.Network.Hosts...)
		secrets = append(secrets, c.Secrets...)
	}
	for _, w := range []struct {
		what       string
		want, says []string
	}{{"effects", effects, m.Effects}, {"hosts", hosts, m.Hosts}, {"secrets", secrets, m.Secrets}} {
		if more := beyond(w.want, w.says); len(more) > 0 {
			return refuse(Exceeds, b.name(), "its capabilities need the %s %s, which %s does not declare",
				w.what, strings.Join(more, ", "), MetadataFile)
		}
	}
	return b.checkSkill()
}

// checkSkill rejects a skill that declares fewer effects than the capabilities that it names have,
// if all of them are in the bundle. The registry checks skills that use other capabilities.
func (b *Bundle) checkSkill() error {
	if b.skill == nil {
		return nil
	}
	foreign := false
	_, err := b.skill.Check(func(id string) (*manifest.Capability, bool) {
		for _, c := range b.Capabilities {
			if c.ID == id {
				return c, true
			}
		}
		foreign = true
		return nil, false
	})
	if err != nil && !foreign {
		return refuse(Exceeds, b.name(), "%s: %w", b.SkillFile, err)
	}
	return nil
}

// beyond returns the elements of want that are not in says, sorted and without duplicates.
func beyond(want, says []string) []string {
	return unique(slices.DeleteFunc(slices.Clone(want), func(w string) bool { return slices.Contains(says, w) }))
}

func unique(words []string) []string {
	slices.Sort(words)
	return slices.Compact(words)
}
