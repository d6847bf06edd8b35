package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"glasshouse/internal/text"
)

const (
	maxQueries = 256 // maximum number of concurrent queries; further ones are refused
	maxAnswers = 16
	udpSize    = 1232 // maximum size of a UDP response; it avoids fragmentation (DNS flag day 2020)

	typeSVCB  = dnsmessage.Type(64)
	typeHTTPS = dnsmessage.Type(65)

	optionError  = 15 // Extended DNS Error option (RFC 8914)
	errorBlocked = 15
)

// ServeDNS answers the jail's DNS queries until Close or until a listener fails, and closes
// both listeners. It answers NXDOMAIN for names that are not allowed, without a query to the
// host's resolver. For allowed names it returns IPv4 addresses only.
func (p *Proxy) ServeDNS(udp net.PacketConn, tcp net.Listener) error {
	if !p.begin(udp) {
		udp.Close()
		tcp.Close()
		return nil
	}
	defer p.wg.Done()
	defer p.removeListener(udp)
	failed := make(chan error, 1)
	p.wg.Go(func() {
		failed <- p.accept(tcp, (*visit).queries)
		udp.Close()
	})
	var waiting atomic.Int64
	buf := make([]byte, 64<<10)
	for {
		n, from, err := udp.ReadFrom(buf)
		if err != nil {
			tcp.Close()
			if p.isClosing() {
				<-failed
				return nil
			}
			return errors.Join(<-failed, err)
		}
		msg := append([]byte(nil), buf[:n]...)
		q, fail := readQuery(msg)
		if q == nil {
			p.unreadable(len(msg))
			if fail != nil {
				udp.WriteTo(fail, from)
			}
			continue
		}
		if waiting.Add(1) > maxQueries {
			waiting.Add(-1)
			udp.WriteTo(q.reply(dnsmessage.RCodeServerFailure, nil, "too many concurrent queries"), from)
			p.refused(q.ask(), refuse(ReasonLimit, "", "more than %d concurrent DNS queries", maxQueries))
			continue
		}
		p.wg.Go(func() {
			defer waiting.Add(-1)
			b := p.answer(q)
			if len(b) > q.size {
				b = q.truncated()
			}
			udp.WriteTo(b, from)
		})
	}
}

// queries answers the DNS queries of one TCP connection.
func (v *visit) queries() {
	for {
		v.client.SetDeadline(time.Now().Add(v.p.times.head))
		var size [2]byte
		if _, err := io.ReadFull(v.client, size[:]); err != nil {
			return
		}
		msg := make([]byte, binary.BigEndian.Uint16(size[:]))
		if n, err := io.ReadFull(v.client, msg); err != nil {
			v.p.unreadable(n)
			return
		}
		q, b := readQuery(msg)
		if q != nil {
			b = v.p.answer(q)
		} else {
			v.p.unreadable(len(msg))
		}
		if b == nil {
			return
		}
		v.client.SetDeadline(time.Now().Add(v.p.times.head))
		if _, err := v.client.Write(binary.BigEndian.AppendUint16(nil, uint16(len(b)))); err != nil {
			return
		}
		if _, err := v.client.Write(b); err != nil {
			return
		}
	}
}

// unreadable records a message that is not a valid DNS query.
func (p *Proxy) unreadable(size int) {
	p.refused(Request{Kind: KindName}, refuse(ReasonMalformed, "", "received %d bytes that are not a valid DNS query", size))
}

// A query is a parsed DNS query.
type query struct {
	id   uint16
	rd   bool
	q    dnsmessage.Question
	host string // queried host, or "" if the name cannot be a host name
	edns bool
	size int // maximum size of a UDP response that the client accepts
}

// readQuery parses a message. Both results are nil if the message is not a query. If the query
// is invalid, q is nil and fail is the error response.
func readQuery(msg []byte) (q *query, fail []byte) {
	var r dnsmessage.Parser
	h, err := r.Start(msg)
	// A reply to a response could start an endless exchange with another server.
	if err != nil || h.Response {
		return nil, nil
	}
	// Without EDNS, a UDP response has at most 512 bytes (RFC 1035, 4.2.1).
	q = &query{id: h.ID, rd: h.RecursionDesired, size: 512}
	if h.OpCode != 0 {
		return nil, q.bare(dnsmessage.RCodeNotImplemented)
	}
	questions, err := r.AllQuestions()
	// RFC 9619 requires FORMERR for more than one question. Only the first one is checked below.
	if err != nil || len(questions) != 1 {
		return nil, q.bare(dnsmessage.RCodeFormatError)
	}
	q.q = questions[0]
	if r.SkipAllAnswers() != nil || r.SkipAllAuthorities() != nil {
		return nil, q.bare(dnsmessage.RCodeFormatError)
	}
	for {
		h, err := r.AdditionalHeader()
		if err == dnsmessage.ErrSectionDone {
			break
		}
		if err != nil {
			return nil, q.bare(dnsmessage.RCodeFormatError)
		}
		if h.Type == dnsmessage.TypeOPT && !q.edns {
			q.edns = true
			// The class field contains the size. Values below 512 mean 512 (RFC 6891, 6.2.3).
			q.size = min(max(512, int(h.Class)), udpSize)
		}
		if r.SkipAdditional() != nil {
			return nil, q.bare(dnsmessage.RCodeFormatError)
		}
	}
	if name := q.q.Name.String(); strings.HasSuffix(name, ".") {
		if host, addr, err := parseHost(name); err == nil && !addr.IsValid() {
			q.host = host
		}
	}
	return q, nil
}

func (q *query) ask() Request { return Request{Kind: KindName, Host: q.host} }

// answer decides about a query and returns the response.
func (p *Proxy) answer(q *query) []byte {
	p.count.queries.Add(1)
	if q.host == "" || q.q.Class != dnsmessage.ClassINET {
		p.refused(Request{Kind: KindName, Host: text.Clip(strings.TrimSuffix(q.q.Name.String(), "."), 253)}, refuse(ReasonName, "", "the queried name is not an Internet host name"))
		return q.reply(dnsmessage.RCodeRefused, nil, "not a valid host name")
	}
	ask := q.ask()
	ask.Jail = p.conf.Jail
	known := p.rules.Load().names(q.host)
	if !known && !p.authorityMayAllow(ask) {
		ref := refuse(ReasonHost, "", "%s is not in this jail's list of allowed hosts", q.host)
		p.refused(ask, ref)
		// NXDOMAIN, because resolvers repeat a query after REFUSED.
		return q.reply(dnsmessage.RCodeNameError, nil, ref.Detail)
	}
	switch q.q.Type {
	case dnsmessage.TypeA:
	// The jail's network has no IPv6. HTTPS and SVCB records can contain address hints (RFC
	// 9460, 7.3) and ECH keys. The answer is empty and not NXDOMAIN, which would mean that the
	// name has no A records either (RFC 4074, 4.2).
	case dnsmessage.TypeAAAA, typeHTTPS, typeSVCB:
		return q.reply(dnsmessage.RCodeSuccess, nil, "")
	default:
		// Records with free text, such as TXT, would be a channel between the jail and the name's
		// servers.
		p.refused(ask, refuse(ReasonProtocol, "", "query type %s is not supported: only address queries are answered", strings.TrimPrefix(q.q.Type.String(), "Type")))
		return q.reply(dnsmessage.RCodeRefused, nil, "only address queries are answered")
	}
	if !known {
		return q.reply(dnsmessage.RCodeSuccess, []netip.Addr{p.known.placeholder(q.host)}, "")
	}
	ctx, stop := context.WithTimeout(p.ctx, p.times.dial/2)
	defer stop()
	found, err := p.resolve(ctx, q.host)
	if e, ok := errors.AsType[*net.DNSError](err); ok && e.IsNotFound {
		return q.reply(dnsmessage.RCodeNameError, nil, "")
	}
	if err != nil {
		return q.reply(dnsmessage.RCodeServerFailure, nil, "the host's resolver does not answer")
	}
	addrs, ref := p.filterAddrs(q.host, found)
	if ref != nil {
		p.refused(ask, ref)
		return q.reply(dnsmessage.RCodeSuccess, nil, ref.Detail)
	}
	return q.reply(dnsmessage.RCodeSuccess, addrs, "")
}

// filterAddrs filters the addresses of a host and remembers the ones that the response contains. It
// returns a refusal if no address may be returned.
func (p *Proxy) filterAddrs(host string, found []netip.Addr) ([]netip.Addr, *refusal) {
	var addrs []netip.Addr
	var ref *refusal
	for _, a := range found {
		if !a.Is4() || len(addrs) == maxAnswers {
			continue
		}
		// Otherwise an allowed name could disclose addresses of the host's network. A query has no
		// port: guard checks the port when the proxy dials.
		if !public(a) && !p.rules.Load().listedForAnyPort(a) {
			ref = refuse(ReasonAddress, "", "%s has the address %s, which is not an Internet address", host, a)
			continue
		}
		p.known.give(a, host)
		addrs = append(addrs, a)
	}
	if len(addrs) > 0 {
		ref = nil
	}
	return addrs, ref
}

// authorityMayAllow reports whether the Authority may allow a connection to the host.
func (p *Proxy) authorityMayAllow(ask Request) bool {
	if p.conf.Authority == nil {
		return false
	}
	ctx, stop := context.WithTimeout(p.ctx, time.Second)
	defer stop()
	verdict, err := p.conf.Authority.Evaluate(ctx, ask)
	return err == nil && verdict.Allow
}

// reply builds a response. why is sent to clients that support EDNS, as an extended DNS error
// (RFC 8914).
func (q *query) reply(code dnsmessage.RCode, addrs []netip.Addr, why string) []byte {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: q.id, Response: true, RecursionDesired: q.rd, RecursionAvailable: true, RCode: code})
	b.EnableCompression()
	err := errors.Join(b.StartQuestions(), b.Question(q.q), b.StartAnswers())
	for _, a := range addrs {
		h := dnsmessage.ResourceHeader{Name: q.q.Name, Class: dnsmessage.ClassINET, TTL: uint32(ttl / time.Second)}
		err = errors.Join(err, b.AResource(h, dnsmessage.AResource{A: a.As4()}))
	}
	err = errors.Join(err, b.StartAdditionals())
	if q.edns {
		var h dnsmessage.ResourceHeader
		var opt dnsmessage.OPTResource
		err = errors.Join(err, h.SetEDNS0(udpSize, code, false))
		if why != "" {
			data := binary.BigEndian.AppendUint16(nil, errorBlocked)
			opt.Options = []dnsmessage.Option{{Code: optionError, Data: append(data, why...)}}
		}
		err = errors.Join(err, b.OPTResource(h, opt))
	}
	msg, e := b.Finish()
	if errors.Join(err, e) != nil {
		return q.bare(dnsmessage.RCodeServerFailure)
	}
	return msg
}

// truncated returns a truncated response (TC bit), so that the client retries over TCP.
func (q *query) truncated() []byte {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: q.id, Response: true, Truncated: true, RecursionDesired: q.rd, RecursionAvailable: true})
	err := errors.Join(b.StartQuestions(), b.Question(q.q))
	msg, e := b.Finish()
	if errors.Join(err, e) != nil {
		return q.bare(dnsmessage.RCodeServerFailure)
	}
	return msg
}

// bare returns a response without a question section.
func (q *query) bare(code dnsmessage.RCode) []byte {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: q.id, Response: true, RecursionDesired: q.rd, RecursionAvailable: true, RCode: code})
	msg, _ := b.Finish() // Finish cannot fail for a header alone
	return msg
}
