package skill

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"glasshouse/capability/manifest"
	"glasshouse/fault"
)

const opCheck = "skill.Check"

// Checked is the actual tier and data of a skill, derived from its capabilities and not from the
// text of the document.
type Checked struct {
	Capabilities []*manifest.Capability // in the order of the document
	Tier         Tier
	Effects      []string
	Secrets      []string
	PerUse       bool // one of them needs approval for each use
}

// Check compares a skill with the capabilities it names. lookup returns a capability and
// whether it is approved. If some are unknown or not approved, the error is fault.Denied and
// names all of them; if the skill shows less or other than they have, it is fault.Invalid and
// lists each difference.
func (s *Skill) Check(lookup func(id string) (c *manifest.Capability, approved bool)) (*Checked, error) {
	k := &Checked{Tier: Informational}
	var unknown, unapproved []string
	for _, id := range s.Capabilities {
		c, approved := lookup(id)
		switch {
		case c == nil:
			unknown = append(unknown, id)
		case !approved:
			unapproved = append(unapproved, id)
		default:
			k.add(c)
		}
	}
	if len(unknown)+len(unapproved) > 0 {
		return nil, refusal(s.Name, unknown, unapproved)
	}
	if mismatches := s.mismatches(k); len(mismatches) > 0 {
		return nil, fault.New(fault.Invalid, opCheck, s.Name, errors.New(strings.Join(mismatches, "; ")))
	}
	if s.Shown.Tier.rank() > k.Tier.rank() {
		k.Tier = s.Shown.Tier
	}
	k.PerUse = k.PerUse || s.Shown.PerUse != nil && *s.Shown.PerUse
	return k, nil
}

func refusal(name string, unknown, unapproved []string) error {
	var says, remedies []string
	if len(unknown) > 0 {
		says = append(says, "unknown: "+strings.Join(unknown, ", "))
		remedies = append(remedies, "install "+strings.Join(unknown, ", "))
	}
	if len(unapproved) > 0 {
		says = append(says, "not approved: "+strings.Join(unapproved, ", "))
		remedies = append(remedies, "have "+strings.Join(unapproved, ", ")+" approved")
	}
	return &fault.Error{
		Op: opCheck, On: name, Kind: fault.Denied, Remedy: strings.Join(remedies, "; "),
		Err: fmt.Errorf("the skill names capabilities that are %s", strings.Join(says, "; ")),
	}
}

// add includes a capability.
func (k *Checked) add(c *manifest.Capability) {
	k.Capabilities = append(k.Capabilities, c)
	for _, e := range c.Effects {
		if !slices.Contains(k.Effects, e) {
			k.Effects = append(k.Effects, e)
		}
	}
	for _, name := range c.Secrets {
		if !slices.Contains(k.Secrets, name) {
			k.Secrets = append(k.Secrets, name)
		}
	}
	k.PerUse = k.PerUse || c.Approval.PerUse
	if t := TierOf(c); t.rank() > k.Tier.rank() {
		k.Tier = t
	}
}

// TierOf returns the tier that a capability gives to a skill.
func TierOf(c *manifest.Capability) Tier {
	switch {
	case c.EffectiveTier() == manifest.Elevated, slices.Contains(c.Effects, "state"), slices.Contains(c.Effects, "fs"):
		return Elevated
	case len(c.Effects) > 0, len(c.Secrets) > 0:
		return Standard
	}
	return ReadOnly
}

// mismatches returns the differences between the values in a document and its capabilities. Values
// that the document lacks are ignored.
func (s *Skill) mismatches(k *Checked) []string {
	var mismatches []string
	say := func(format string, args ...any) { mismatches = append(mismatches, fmt.Sprintf(format, args...)) }
	if t := s.Shown.Tier; t != "" && t.rank() < k.Tier.rank() {
		say("the document shows the tier %s, but its capabilities require %s%s", t, k.Tier, because(k))
	}
	for _, one := range []struct {
		what        string
		shown, real []string
	}{{"effects", s.Shown.Effects, k.Effects}, {"secrets", s.Shown.Secrets, k.Secrets}} {
		if one.shown == nil {
			continue
		}
		if hidden := without(one.real, one.shown); len(hidden) > 0 {
			say("the %s that the document shows do not include %s", one.what, strings.Join(hidden, ", "))
		}
		if made := without(one.shown, one.real); len(made) > 0 {
			say("the document shows %s that its capabilities do not have: %s", one.what, strings.Join(made, ", "))
		}
	}
	for _, c := range k.Capabilities {
		d := c.DataClasses
		for _, l := range d.Input {
			if s.Shown.Input != nil && !manifest.Covered(s.Shown.Input, l) {
				say("the input data that the document shows does not include %s, which %s receives", l, c.ID)
			}
		}
		gives := d.Output
		if len(gives) == 0 {
			gives = d.Input
		}
		for _, l := range gives {
			if s.Shown.Output != nil && !manifest.Covered(s.Shown.Output, l) {
				say("the output data that the document shows does not include %s, which %s returns", l, c.ID)
			}
		}
		if p := s.Shown.PerUse; p != nil && !*p && c.Approval.PerUse {
			say("the document shows no approval for each use, but %s requires it", c.ID)
		}
	}
	return mismatches
}

// because names the capabilities that cause a tier.
func because(k *Checked) string {
	var ids []string
	for _, c := range k.Capabilities {
		if TierOf(c) == k.Tier {
			ids = append(ids, c.ID)
		}
	}
	return ", for " + strings.Join(ids, ", ")
}

func without(all, these []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(these, s) })
}
