package manifest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// EffectiveTier returns the approval that a capability needs: the tier of its manifest, or a
// higher one if its effects require that. A manifest cannot approve itself: a capability with
// effects is never preapproved.
func (c *Capability) EffectiveTier() Tier {
	needs := Preapproved
	switch {
	case c.Runtime.Type == Native, c.DataClasses.Declassifies:
		needs = Elevated
	case len(Widens(nil, c)) > 0:
		needs = Standard
	}
	if c.Approval.Tier.rank() < needs.rank() {
		return needs
	}
	return c.Approval.Tier
}

// Covers reports whether authority to approve tier t includes tier u.
func (t Tier) Covers(u Tier) bool { return t.rank() >= u.rank() }

// rank orders tiers. An empty tier counts as Standard.
func (t Tier) rank() int {
	switch t {
	case Preapproved:
		return 0
	case Elevated:
		return 2
	}
	return 1
}

// Widens describes the effects of a new version that the old one did not have, for its
// approver. An empty result means that no new approval is needed. If old is nil, all effects
// are listed.
func Widens(old, new *Capability) []string {
	w := &widening{first: old == nil, old: old, new: new}
	if w.first {
		w.old = &Capability{Filesystem: Filesystem{Mode: Ephemeral}, Runtime: Spec{Type: RTFS}}
	}
	w.runtime()
	w.effects()
	w.network()
	w.secrets()
	w.files()
	w.classes()
	if !w.first {
		w.limits()
		w.approval()
	}
	return w.words
}

type widening struct {
	first    bool
	old, new *Capability
	words    []string
}

func (w *widening) say(format string, args ...any) {
	w.words = append(w.words, fmt.Sprintf(format, args...))
}

func (w *widening) runtime() {
	was, is := w.old.Runtime.Type, w.new.Runtime.Type
	switch {
	case was == is && (is != Native || w.old.Runtime.Digest == w.new.Runtime.Digest && slices.Equal(w.old.Runtime.Entrypoint, w.new.Runtime.Entrypoint)):
	case is == Native && was == Native:
		w.say("runs another program on the host itself")
	case is == Native:
		w.say("runs on the host itself, in no sandbox")
	case w.first, is == RTFS, was == Native, slices.Contains(jailed, was) && slices.Index(jailed, was) < slices.Index(jailed, is):
	default:
		w.say("runs as :%s and no longer as :%s", is, was)
	}
	if !w.first && w.new.Runtime.Stdio == MCPStdio && w.old.Runtime.Tool != w.new.Runtime.Tool {
		w.say("is a tool whose server has changed its description")
	}
}

// effectWords describes effects for approvers.
var effectWords = map[string]string{
	"network": "uses the network (:network)",
	"fs":      "changes files (:fs)",
	"state":   "changes what is kept (:state)",
	"secrets": "uses secrets (:secrets)",
	"exec":    "runs programs (:exec)",
}

func (w *widening) effects() {
	for _, e := range w.new.Effects {
		if !slices.Contains(w.old.Effects, e) {
			w.say("%s", cmp.Or(effectWords[e], "does what it calls "+e))
		}
	}
}

// reach returns the hosts and ports that a capability can reach.
func (c *Capability) reach() (hosts []string, ports []uint16) {
	if c.NoEgress || c.Network.Mode != ModeProxy || len(c.Network.Hosts) == 0 {
		return nil, nil
	}
	if len(c.Network.Ports) == 0 {
		return c.Network.Hosts, []uint16{80, 443}
	}
	return c.Network.Hosts, c.Network.Ports
}

func (w *widening) network() {
	had, oldPorts := w.old.reach()
	hosts, ports := w.new.reach()
	for _, h := range hosts {
		if !slices.ContainsFunc(had, func(o string) bool { return coversHost(o, h) }) {
			w.say("reaches %s", hostWords(h))
		}
	}
	if len(hosts) == 0 {
		return
	}
	var added []string
	for _, p := range ports {
		if !slices.Contains(oldPorts, p) && !(len(had) == 0 && (p == 80 || p == 443)) {
			added = append(added, fmt.Sprint(p))
		}
	}
	if len(added) > 0 {
		w.say("reaches port %s", strings.Join(added, ", "))
	}
	if len(had) > 0 {
		w.number("requests in a minute", int64(w.old.Network.Rate), int64(w.new.Network.Rate))
	}
	for _, in := range w.new.Network.Inject {
		for _, h := range in.hosts(hosts) {
			if len(had) == 0 || !w.old.sends(in.Secret, h) {
				w.say("has the secret %s put into requests to %s", in.Secret, hostWords(h))
			}
		}
	}
}

// hosts returns the hosts to which a secret is sent.
func (in Inject) hosts(allowed []string) []string {
	if in.Host != "" {
		return []string{in.Host}
	}
	return allowed
}

// sends reports whether a secret is added to requests to a host.
func (c *Capability) sends(secret, host string) bool {
	return slices.ContainsFunc(c.Network.Inject, func(in Inject) bool {
		return in.Secret == secret && slices.ContainsFunc(in.hosts(c.Network.Hosts), func(h string) bool { return coversHost(h, host) })
	})
}

// hostWords describes a host and its risks.
func hostWords(h string) string {
	p, address := prefixOf(h)
	switch {
	case h == "*":
		return "every host of the Internet"
	case strings.HasPrefix(h, "*."):
		return "every host below " + h[2:]
	case !address:
		return h
	case p.Bits() == 0:
		return h + ", which is every address there is, this host's and its network's too"
	case p.Addr().IsLoopback():
		return h + ", which is this host itself"
	case p.Addr().IsPrivate(), p.Addr().IsLinkLocalUnicast(), p.Addr().IsUnspecified():
		return h + ", which is not of the Internet but of this host's own network"
	}
	return h
}

func (w *widening) secrets() {
	for _, name := range w.new.SecretFiles() {
		if !slices.Contains(w.old.SecretFiles(), name) {
			w.say("is given the secret %s", name)
		}
	}
}

func (w *widening) files() {
	was, is := w.old.Filesystem, w.new.Filesystem
	for _, m := range is.Mounts {
		shows := func(o Mount) bool { return under(m.Host, o.Host) }
		switch {
		case m.Write && !slices.ContainsFunc(was.Mounts, func(o Mount) bool { return shows(o) && o.Write }):
			w.say("reads and writes %s of the workspace", hostText(m.Host))
		case !slices.ContainsFunc(was.Mounts, shows):
			w.say("reads %s of the workspace", hostText(m.Host))
		}
	}
	kept := []Mode{Ephemeral, Session, Persistent}
	if slices.Index(kept, is.Mode) > slices.Index(kept, was.Mode) {
		w.say("keeps what it writes %s", map[Mode]string{Session: "until the session ends", Persistent: "from call to call"}[is.Mode])
	}
	if !w.first {
		w.number("MiB to write", int64(was.QuotaMB), int64(is.QuotaMB))
	}
}

func hostText(host string) string {
	if host == "." {
		return "all"
	}
	return host
}

func (w *widening) classes() {
	was, is := w.old.DataClasses, w.new.DataClasses
	for _, l := range is.Input {
		if !Covered(was.Input, l) {
			w.say("receives data of class %s", l)
		}
	}
	gives := was.Output
	if len(gives) == 0 {
		gives = was.Input
	}
	for _, l := range is.Output {
		if !Covered(gives, l) && !(w.first && Covered(is.Input, l)) {
			w.say("returns data of class %s", l)
		}
	}
	if !is.Declassifies {
		return
	}
	for _, l := range is.lowered() {
		out := Join(is.Output...)
		if !was.Declassifies || !slices.Contains(was.lowered(), l) || !out.Covers(Join(was.Output...)) {
			w.say("makes %s of data that is %s: it lowers what protects it", out, l)
		}
	}
}

func (w *widening) limits() {
	was, is := w.old.Resources, w.new.Resources
	w.number("of the processor's shares", int64(was.CPUShares), int64(is.CPUShares))
	w.number("MiB of memory", int64(was.MemoryMB), int64(is.MemoryMB))
	switch {
	case was.Timeout == is.Timeout || was.Timeout != 0 && is.Timeout != 0 && is.Timeout < was.Timeout:
	case is.Timeout == 0:
		w.say("may take as long as the host lets it for a call, where it was %v", was.Timeout)
	case was.Timeout == 0:
		w.say("may take %v for a call, where the host decided", is.Timeout)
	default:
		w.say("may take %v for a call, where it was %v", is.Timeout, was.Timeout)
	}
	w.number("bytes over the network", was.NetworkBytes, is.NetworkBytes)
	w.number("processes", int64(was.PIDs), int64(is.PIDs))
}

// number describes a raised or newly unlimited limit. 0 is the host's default, whose value is not
// part of the manifest.
func (w *widening) number(what string, was, is int64) {
	switch {
	case was == is || was != 0 && is != 0 && is < was:
	case is == 0:
		w.say("may use as many %s as the host lets it, where it was %d", strings.TrimPrefix(what, "of "), was)
	case was == 0:
		w.say("may use %d %s, where the host decided", is, what)
	default:
		w.say("may use %d %s, where it was %d", is, what, was)
	}
}

func (w *widening) approval() {
	if was, is := w.old.EffectiveTier(), w.new.EffectiveTier(); is.rank() < was.rank() {
		w.say("is approved as %s, where it was %s", is, was)
	}
	if w.old.Approval.PerUse && !w.new.Approval.PerUse {
		w.say("is no longer asked about at each use")
	}
}
