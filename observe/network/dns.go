package network

import (
	"container/list"
	"encoding/binary"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// maxNames bounds the number of cached addresses.
const maxNames = 4096

// names maps addresses to the latest names that a jail resolved. It evicts the least recently
// resolved. The zero value is ready to use.
type names struct {
	of    map[netip.Addr]*list.Element // elements are *named
	order list.List                    // latest first
	age   uint64                       // number of entries ever added
}

type named struct {
	addr netip.Addr
	name string
}

func (n *names) learn(a netip.Addr, name string) {
	n.age++
	if e := n.of[a]; e != nil {
		e.Value.(*named).name = name
		n.order.MoveToFront(e)
		return
	}
	if n.of == nil {
		n.of = map[netip.Addr]*list.Element{}
	}
	n.of[a] = n.order.PushFront(&named{a, name})
	if len(n.of) > maxNames {
		e := n.order.Back()
		delete(n.of, e.Value.(*named).addr)
		n.order.Remove(e)
	}
}

func (n *names) name(a netip.Addr) string {
	if e := n.of[a]; e != nil {
		return e.Value.(*named).name
	}
	return ""
}

// answers calls f for every address in a DNS response, with the queried name, which may be an
// alias. It ignores invalid data.
func answers(msg []byte, f func(netip.Addr, string)) {
	var p dnsmessage.Parser
	head, err := p.Start(msg)
	if err != nil || !head.Response {
		return
	}
	q, err := p.Question()
	if err != nil || p.SkipAllQuestions() != nil {
		return
	}
	asked := hostname(q.Name.String())
	if asked == "" {
		return
	}
	for {
		h, err := p.AnswerHeader()
		if err != nil {
			return
		}
		switch h.Type {
		case dnsmessage.TypeA:
			r, err := p.AResource()
			if err != nil {
				return
			}
			f(netip.AddrFrom4(r.A), asked)
		case dnsmessage.TypeAAAA:
			r, err := p.AAAAResource()
			if err != nil {
				return
			}
			f(netip.AddrFrom16(r.AAAA).Unmap(), asked)
		default:
			if p.SkipAnswer() != nil {
				return
			}
		}
	}
}

// stream calls f for each complete message in a segment of DNS over TCP.
func stream(b []byte, f func(msg []byte)) {
	for len(b) > 2 {
		n := int(binary.BigEndian.Uint16(b))
		// The message continues in another segment. TCP streams are not reassembled.
		if n > len(b)-2 {
			return
		}
		f(b[2 : 2+n])
		b = b[2+n:]
	}
}

// hostname returns the canonical form of s, or "" if it is not a valid host name.
func hostname(s string) string {
	s = strings.TrimSuffix(s, ".")
	if s == "" || len(s) > 253 {
		return ""
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.', c == '_':
		default:
			return ""
		}
	}
	return strings.ToLower(s)
}
