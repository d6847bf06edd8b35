package bundle

import (
	"slices"
	"strings"

	"glasshouse/manifest"
)

// CheckClaims refuses a bundle whose capabilities want more than metadata.json
// says: what is shown to whoever approves it must be all there is.
func (b *Bundle) CheckClaims() error {
	m := b.Metadata
	var effects, hosts, secrets []string
	for _, c := range b.Capabilities {
		if need := tierOf(c); !need.Within(m.Tier) {
			return refuse(Exceeds, b.path, "%s is of tier %s, and the bundle says %s", c.ID, need, m.Tier)
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
			return refuse(Exceeds, b.path, "its capabilities want the %s %s, which %s does not say",
				w.what, strings.Join(more, ", "), MetadataFile)
		}
	}
	return nil
}

// tierOf is the least tier of a bundle that has this capability.
func tierOf(c *manifest.Capability) Tier {
	switch {
	case c.EffectiveTier() == manifest.Elevated,
		slices.Contains(c.Effects, "state"),
		slices.Contains(c.Effects, "fs"):
		return Elevated
	case len(c.Effects) == 0:
		return ReadOnly
	}
	return Standard
}

// beyond is what of want is not in says, each once and in order.
func beyond(want, says []string) []string {
	return unique(slices.DeleteFunc(slices.Clone(want), func(w string) bool { return slices.Contains(says, w) }))
}

func unique(words []string) []string {
	slices.Sort(words)
	return slices.Compact(words)
}
