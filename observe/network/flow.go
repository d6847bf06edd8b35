package network

import (
	"container/list"
	"net/netip"
	"time"

	"glasshouse/observe/event"
)

const (
	maxConversations = 2048             // maximum per jail
	flowEvery        = 10 * time.Second // interval of the events of an active flow
	flowIdle         = 60 * time.Second // a flow without packets for this time has ended
	flowLinger       = time.Second      // wait for the last packets of a closed connection
)

// An end is one endpoint of a conversation. For protocols without ports the port is 0; for
// ICMP echo it is the identifier.
type end struct {
	addr netip.Addr
	port uint16
}

func (e end) less(o end) bool {
	if c := e.addr.Compare(o.addr); c != 0 {
		return c < 0
	}
	return e.port < o.port
}

// A talk identifies a conversation in either direction.
type talk struct {
	proto uint8
	ends  [2]end // the lesser first
}

// A conversation is the state of the packets between two ends. Direction 0 is from ends[0] to
// ends[1].
type conversation struct {
	talk
	text  [2]string        // the formatted ends
	owner [2]*networkOwner // processes of the ends; nil if outside the jail or unknown
	host  string
	age   uint64 // age of the names when host was looked up

	sums    [2]sum
	fin     [2]bool
	closing int64 // NS of the end, or 0
}

// A sum counts the packets of one direction since the last event.
type sum struct {
	packets, bytes int64
	tcp            uint8
	flags          event.Flags
	index          uint32
	dir            uint8
	begin          int64 // NS of the flow's first packet
	since, last    int64 // NS of the first and last packet of the sum
}

// conversations is an LRU list of conversations, most recently used first. It evicts the
// conversation that has had no packets for the longest time. The zero value is ready to use.
type conversations struct {
	of    map[talk]*list.Element // elements are *conversation
	order list.List
}

// between returns the conversation of a packet from src to dst and the direction. If it evicts
// a conversation, it returns that, too.
func (c *conversations) between(proto uint8, src, dst end) (_ *conversation, dir int, gone *conversation) {
	k := talk{proto, [2]end{src, dst}}
	if dst.less(src) {
		k.ends[0], k.ends[1], dir = dst, src, 1
	}
	if e := c.of[k]; e != nil {
		c.order.MoveToFront(e)
		return e.Value.(*conversation), dir, nil
	}
	if c.of == nil {
		c.of = map[talk]*list.Element{}
	}
	v := &conversation{talk: k}
	for i, e := range k.ends {
		v.text[i] = written(proto, e)
	}
	c.of[k] = c.order.PushFront(v)
	if len(c.of) > maxConversations {
		gone = c.order.Back().Value.(*conversation)
		c.forget(gone)
	}
	return v, dir, gone
}

func (c *conversations) forget(v *conversation) {
	c.order.Remove(c.of[v.talk])
	delete(c.of, v.talk)
}

// all calls f for each conversation. f may remove it.
func (c *conversations) all(f func(*conversation)) {
	for e := c.order.Front(); e != nil; {
		next := e.Next()
		f(e.Value.(*conversation))
		e = next
	}
}

func written(proto uint8, e end) string {
	if !ported(proto) || e.port == 0 {
		return e.addr.String()
	}
	return netip.AddrPortFrom(e.addr, e.port).String()
}

const (
	protoICMP  = 1
	protoTCP   = 6
	protoUDP   = 17
	protoICMP6 = 58
)

func ported(proto uint8) bool {
	switch proto {
	case protoTCP, protoUDP, 33, 132, 136: // DCCP, SCTP, UDP-Lite
		return true
	}
	return false
}

const (
	tcpFIN = 1 << iota
	tcpSYN
	tcpRST
)

// add counts a packet.
func (v *conversation) add(dir int, r *networkRecord, flags event.Flags) {
	s, ns := &v.sums[dir], int64(r.Ns)
	if s.begin == 0 {
		s.begin = ns
	}
	if s.packets == 0 {
		s.since, s.tcp, s.flags = ns, 0, 0
	}
	s.packets += max(1, int64(r.Segments))
	s.bytes += int64(r.Len)
	s.tcp |= r.Tcp
	s.flags |= flags
	s.index, s.dir, s.last = r.Ifindex, r.Flags&direction, ns
	v.fin[dir] = v.fin[dir] || r.Tcp&tcpFIN != 0
	if v.closing == 0 && (r.Tcp&tcpRST != 0 || v.fin[0] && v.fin[1]) {
		v.closing = ns
	}
}

// again reports whether a packet starts another connection between the same ends.
func (v *conversation) again(r *networkRecord) bool {
	// A SYN may reuse the ports of a connection in TIME-WAIT (RFC 9293, 3.6.1).
	return v.closing != 0 && r.Tcp&tcpSYN != 0
}

// due returns when the conversation must be checked next.
func (v *conversation) due() int64 {
	at := max(v.sums[0].last, v.sums[1].last) + int64(flowIdle)
	if v.closing != 0 {
		at = min(at, v.closing+int64(flowLinger))
	}
	for i := range v.sums {
		if s := &v.sums[i]; s.packets > 0 {
			at = min(at, s.since+int64(flowEvery))
		}
	}
	return at
}

// over reports whether the conversation has ended.
func (v *conversation) over(now int64) bool {
	if v.closing != 0 {
		return now >= v.closing+int64(flowLinger)
	}
	return now >= max(v.sums[0].last, v.sums[1].last)+int64(flowIdle)
}
