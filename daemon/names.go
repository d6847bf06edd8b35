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

// groups answers, in each group of bridged jails, for the names of its members:
// their identifiers and, where it is one that can be asked for, the name somebody
// gave them. There is nobody else to ask.
type groups struct {
	log *slog.Logger

	mu   sync.Mutex
	open map[string]*group // by the group's door
	in   map[id.Jail]*group
}

type group struct {
	door string
	conn net.PacketConn

	mu      sync.Mutex
	members map[id.Jail]member
}

type member struct {
	name string // "" is none
	at   netip.Addr
}

// join makes a jail known to its group. The first of it has it listened to.
func (g *groups) join(door string, jid id.Jail, name string, at netip.Addr) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if old := g.in[jid]; old != nil && old.door != door {
		g.leaveLocked(jid)
	}
	gr := g.open[door]
	if gr == nil {
		gr = &group{door: door, members: map[id.Jail]member{}}
		err := netns.Do(door, func() (err error) {
			gr.conn, err = net.ListenPacket("udp4", fmt.Sprint(netns.Gateway, ":", netns.NamePort))
			return err
		})
		if err != nil {
			return fmt.Errorf("answer for the names of a group: %w", err)
		}
		if g.open == nil {
			g.open, g.in = map[string]*group{}, map[id.Jail]*group{}
		}
		g.open[door] = gr
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

// rename gives a member another name.
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

// leave has a jail forgotten by its group, if it is in one.
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
		delete(g.open, gr.door)
		gr.conn.Close()
	}
}

// Close has nobody answered any more.
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
			log.Warn("questions for names of a group", "err", err)
			return
		}
		if answer := gr.answer(buf[:n]); answer != nil {
			gr.conn.WriteTo(answer, from) // who gets none asks again
		}
	}
}

// answer answers one question, or returns nil if it is none.
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
		// Not for long: another may have the name soon.
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

// find returns where the member of a name is. Of two with one name it is the one
// whose identifier comes first.
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

// askable reports whether a jail's name can be asked for as the name of a host.
func askable(name string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789-"
	return name != "" && len(name) <= 63 && strings.Trim(strings.ToLower(name), letters) == ""
}
