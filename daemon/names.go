package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"

	"golang.org/x/net/dns/dnsmessage"

	"glasshouse/host/netns"
	"glasshouse/id"
)

// groups answers DNS queries in each group of bridged jails. It resolves the members' IDs and,
// if they are valid host names, their names. Groups have no other resolver.
type groups struct {
	log *slog.Logger

	mu   sync.Mutex
	open map[string]*group // by network namespace of the group
	in   map[id.Jail]*group
}

type group struct {
	endpointNS string
	conn       net.PacketConn

	mu      sync.Mutex
	members map[id.Jail]member
}

type member struct {
	name string // "" if it cannot be resolved
	at   netip.Addr
}

// join adds a jail to its group. For the first jail of a group it starts the DNS listener.
func (g *groups) join(endpointNS string, jid id.Jail, name string, at netip.Addr) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if old := g.in[jid]; old != nil && old.endpointNS != endpointNS {
		g.leaveLocked(jid)
	}
	gr := g.open[endpointNS]
	if gr == nil {
		gr = &group{endpointNS: endpointNS, members: map[id.Jail]member{}}
		err := netns.Do(endpointNS, func() (err error) {
			gr.conn, err = net.ListenPacket("udp4", fmt.Sprint(netns.Gateway, ":", netns.NamePort))
			return err
		})
		if err != nil {
			return fmt.Errorf("listen for DNS queries of a group: %w", err)
		}
		if g.open == nil {
			g.open, g.in = map[string]*group{}, map[id.Jail]*group{}
		}
		g.open[endpointNS] = gr
		go gr.serve(g.log)
	}
	if !askable(name) {
		name = ""
	}
	gr.mu.Lock()
	gr.members[jid] = member{name: strings.ToLower(name), at: at}
	gr.mu.Unlock()
	g.in[jid] = gr
	return nil
}

// rename changes the name of a member.
func (g *groups) rename(jid id.Jail, name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	gr := g.in[jid]
	if gr == nil {
		return
	}
	if !askable(name) {
		name = ""
	}
	gr.mu.Lock()
	defer gr.mu.Unlock()
	gr.members[jid] = member{name: strings.ToLower(name), at: gr.members[jid].at}
}

// leave removes a jail from its group, if it is in one.
func (g *groups) leave(jid id.Jail) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leaveLocked(jid)
}

func (g *groups) leaveLocked(jid id.Jail) {
	gr := g.in[jid]
	if gr == nil {
		return
	}
	delete(g.in, jid)
	gr.mu.Lock()
	delete(gr.members, jid)
	left := len(gr.members)
	gr.mu.Unlock()
	if left == 0 {
		delete(g.open, gr.endpointNS)
		gr.conn.Close()
	}
}

// Close closes the DNS listeners of all groups.
func (g *groups) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, gr := range g.open {
		gr.conn.Close()
	}
	g.open, g.in = nil, nil
	return nil
}

func (gr *group) serve(log *slog.Logger) {
	buf := make([]byte, 4096)
	for {
		n, from, err := gr.conn.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			log.Warn("cannot read a DNS query of a group", "err", err)
			return
		}
		if answer := gr.answer(buf[:n]); answer != nil {
			gr.conn.WriteTo(answer, from) // a client without an answer retries
		}
	}
}

// answer answers a DNS query, or returns nil if msg is not a query.
func (gr *group) answer(msg []byte) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil || h.Response || h.OpCode != 0 {
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	at, known := gr.find(q.Name.String())
	reply := dnsmessage.Header{ID: h.ID, Response: true, Authoritative: true, RecursionDesired: h.RecursionDesired, RecursionAvailable: true}
	if !known {
		reply.RCode = dnsmessage.RCodeNameError
	}
	b := dnsmessage.NewBuilder(nil, reply)
	b.EnableCompression()
	if b.StartQuestions() != nil || b.Question(q) != nil || b.StartAnswers() != nil {
		return nil
	}
	if known && q.Type == dnsmessage.TypeA && q.Class == dnsmessage.ClassINET {
		// A short TTL, because another jail may get the name.
		head := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}
		if b.AResource(head, dnsmessage.AResource{A: at.As4()}) != nil {
			return nil
		}
	}
	out, err := b.Finish()
	if err != nil {
		return nil
	}
	return out
}

// find returns the address of a member by its name or ID. If two members have the same name,
// find returns the one with the lower ID.
func (gr *group) find(name string) (at netip.Addr, known bool) {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	gr.mu.Lock()
	defer gr.mu.Unlock()
	if m, ok := gr.members[id.Jail(name)]; ok {
		return m.at, true
	}
	first := id.Jail("")
	for jid, m := range gr.members {
		if m.name != "" && m.name == name && (first == "" || jid < first) {
			first, at, known = jid, m.at, true
		}
	}
	return at, known
}

// askable reports whether a jail's name is valid as a DNS label.
func askable(name string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789-"
	return name != "" && len(name) <= 63 && strings.Trim(strings.ToLower(name), letters) == ""
}
