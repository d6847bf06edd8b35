package skill

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"glasshouse/fault"
	"glasshouse/manifest"
)

const opCheck = "skill.Check"

// Checked is what a skill is, by what its capabilities say and not by what it shows.
type Checked struct {
	Capabilities []*manifest.Capability // in the order of the document
	Tier         Tier
	Effects      []string
	Secrets      []string
	PerUse       bool // a person agrees to each use of one of them
}

// Check holds a skill against the capabilities it names. lookup returns one, and
// whether it is approved. If one is unknown or not approved the error is
// fault.Denied and names them all; if the skill shows less or other than they are it
// is fault.Invalid and says each.
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
	if lies := s.lies(k); len(lies) > 0 {
		return nil, fault.New(fault.Invalid, opCheck, s.Name, errors.New(strings.Join(lies, "; ")))
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
		Err: fmt.Errorf("it names capabilities that are %s", strings.Join(says, "; ")),
	}
}

// add takes a capability into account.
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

// TierOf is the tier that a skill has by one capability.
func TierOf(c *manifest.Capability) Tier {
	switch {
	case c.EffectiveTier() == manifest.Elevated, slices.Contains(c.Effects, "state"), slices.Contains(c.Effects, "fs"):
		return Elevated
	case len(c.Effects) > 0, len(c.Secrets) > 0:
		return Standard
	}
	return ReadOnly
}

// lies are what a document shows and its capabilities are not. What it does not show
// is no lie.
func (s *Skill) lies(k *Checked) []string {
	var lies []string
	say := func(format string, args ...any) { lies = append(lies, fmt.Sprintf(format, args...)) }
	if t := s.Shown.Tier; t != "" && t.rank() < k.Tier.rank() {
		say("it says that its tier is %s, and by its capabilities it is %s%s", t, k.Tier, because(k))
	}
	for _, one := range []struct {
		what        string
		shown, real []string
	}{{"effects", s.Shown.Effects, k.Effects}, {"secrets", s.Shown.Secrets, k.Secrets}} {
		if one.shown == nil {
			continue
		}
		if hidden := without(one.real, one.shown); len(hidden) > 0 {
			say("the %s it shows leave out %s", one.what, strings.Join(hidden, ", "))
		}
		if made := without(one.shown, one.real); len(made) > 0 {
			say("the %s it shows are none of its capabilities': %s", one.what, strings.Join(made, ", "))
		}
	}
	for _, c := range k.Capabilities {
		d := c.DataClasses
		for _, l := range d.Input {
			if s.Shown.Input != nil && !manifest.Covered(s.Shown.Input, l) {
				say("the data it shows as input leaves out %s, which %s is given", l, c.ID)
			}
		}
		gives := d.Output
		if len(gives) == 0 {
			gives = d.Input
		}
		for _, l := range gives {
			if s.Shown.Output != nil && !manifest.Covered(s.Shown.Output, l) {
				say("the data it shows as output leaves out %s, which %s gives", l, c.ID)
			}
		}
		if p := s.Shown.PerUse; p != nil && !*p && c.Approval.PerUse {
			say("it says that nobody is asked at each use, and %s asks", c.ID)
		}
	}
	return lies
}

// because names the capabilities that make a tier what it is.
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
