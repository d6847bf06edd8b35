package report

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"glasshouse/observe/event"
)

// A NetLog folds packet events into connections. Events are added in log order. Besides
// packets, it uses failed connect calls. It is not safe for concurrent use.
type NetLog struct {
	flows    table[flowKey, flow]
	peers    table[peerKey, peer]
	names    table[string, name]
	failed   table[connectKey, connect]
	total    Traffic
	conns    int64 // flows, plus reconnections on the same ports
	refusals int64 // refused connections
	fails    int64 // failed connect calls
	lost     Lost
}

// Traffic counts packets and bytes from the jail's perspective. Loopback traffic is counted
// once, as outgoing.
type Traffic struct {
	PacketsOut int64 `json:"packets_out"`
	BytesOut   int64 `json:"bytes_out"`
	PacketsIn  int64 `json:"packets_in"`
	BytesIn    int64 `json:"bytes_in"`
}

func (t *Traffic) add(out bool, packets, bytes int64) {
	if out {
		t.PacketsOut, t.BytesOut = sum(t.PacketsOut, packets), sum(t.BytesOut, bytes)
	} else {
		t.PacketsIn, t.BytesIn = sum(t.PacketsIn, packets), sum(t.BytesIn, bytes)
	}
}

func (t *Traffic) plus(v *Traffic, sign int64) {
	t.PacketsOut += sign * v.PacketsOut
	t.BytesOut += sign * v.BytesOut
	t.PacketsIn += sign * v.PacketsIn
	t.BytesIn += sign * v.BytesIn
}

// States of a flow. Flows of protocols other than TCP are always open.
const (
	Unanswered  = "unanswered"  // SYN without a response
	Refused     = "refused"     // SYN answered by RST, or ECONNREFUSED
	Established = "established" // both sides sent data, or the connection existed before
	Closed      = "closed"      // FIN
	Reset       = "reset"       // RST after the connection was established
	Open        = "open"        // not TCP
)

// A Flow summarizes the packets between two addresses or ports.
type Flow struct {
	Proto   string    `json:"proto"`
	Dir     string    `json:"dir"` // direction of the first packet: egress, ingress or loopback
	Local   Text      `json:"local"`
	Remote  Text      `json:"remote"`
	Host    Text      `json:"host,omitempty"`
	PID     int32     `json:"pid,omitempty"`
	Comm    Text      `json:"comm,omitempty"`
	State   string    `json:"state"`
	Times   int64     `json:"times"`   // connections; more than 1 if the ports were reused
	Refused int64     `json:"refused"` // refused connections
	AtLeast bool      `json:"at_least,omitempty"`
	Begin   time.Time `json:"begin"`
	End     time.Time `json:"end"` // time of the last packet so far
	Traffic
	Events Link `json:"events"`
}

type flowKey struct{ proto, local, remote string }

type flow struct {
	dir, host       string
	pid             int32
	comm            string
	out, in         tcpFlags // flags of the current connection, by sender
	flipped         bool     // the remote side opened it
	times, refused  int64
	beginTS, lastTS int64
	traffic         Traffic
	link            Link
}

type tcpFlags uint8

const (
	syn tcpFlags = 1 << iota
	ack
	fin
	rst
)

func parseTCP(s string) (f tcpFlags) {
	for s != "" {
		var w string
		w, s, _ = strings.Cut(s, ",")
		switch w {
		case "SYN":
			f |= syn
		case "ACK":
			f |= ack
		case "FIN":
			f |= fin
		case "RST":
			f |= rst
		}
	}
	return f
}

const keepFlows = 8192

// NewNetLog returns an empty log.
func NewNetLog() *NetLog {
	n := &NetLog{}
	n.flows.keep = keepFlows
	n.flows.weight = func(f *flow) int64 { return sum(f.traffic.BytesOut, f.traffic.BytesIn) }
	n.flows.copyKey = func(k flowKey) flowKey { return flowKey{keep(k.proto), keep(k.local), keep(k.remote)} }
	n.flows.dropped = func(k flowKey, f *flow) { foldPeer(&n.peers, k, f) }
	n.peers.keep = 2048
	n.peers.weight = func(p *peer) int64 { return sum(p.traffic.BytesOut, p.traffic.BytesIn) }
	n.peers.copyKey = func(k peerKey) peerKey { k.host, k.proto = keep(k.host), keep(k.proto); return k }
	n.names.keep, n.names.copyKey = 1024, keep
	n.names.weight = func(n *name) int64 { return sum(n.traffic.BytesOut, n.traffic.BytesIn) }
	n.failed.keep = 1024
	n.failed.weight = func(c *connect) int64 { return c.count }
	n.failed.copyKey = func(k connectKey) connectKey { k.addr = keep(k.addr); return k }
	return n
}

// Add adds the next event. It retains no reference to e.
func (n *NetLog) Add(e *event.Event) {
	switch e.Type {
	case event.Net:
		n.packet(e)
	case event.Gap:
		if e.Source == event.Net || e.Source == 0 {
			n.lost.add(e)
		}
	case event.Syscall:
		if e.Name == "connect" && e.Ret < 0 && e.Addr != "" {
			n.connect(e)
		}
	}
}

func (n *NetLog) packet(e *event.Event) {
	k := flowKey{cut(e.Proto), cut(e.Src), cut(e.Dst)}
	flags := parseTCP(e.TCP)
	out := e.Dir != event.Ingress
	switch e.Dir {
	case event.Ingress:
		k.local, k.remote = k.remote, k.local
	case event.Loopback:
		// For loopback traffic, the side that opened the connection is the local one.
		back := flowKey{k.proto, k.remote, k.local}
		if n.flows.find(k) == nil && (n.flows.find(back) != nil || flags&(syn|ack) == syn|ack && e.Packets == 0) {
			k, out = back, false
		}
	}
	f, fresh := n.flows.get(k)
	if fresh {
		*f = flow{dir: direction(e.Dir, flags, e.Packets), beginTS: e.TS, times: 1}
		// The event of a flow is recorded seconds after its first packet.
		if e.Begin > 0 && e.NS > e.Begin {
			f.beginTS -= (e.NS - e.Begin) / int64(time.Millisecond)
		}
		f.flipped = f.dir == event.Ingress
		n.conns++
	}
	f.flags(out, flags, fresh, n)
	if e.PID != 0 && f.pid == 0 {
		f.pid, f.comm = e.PID, keep(e.Comm)
	}
	packets := max(e.Packets, 1)
	f.lastTS = max(f.lastTS, e.TS)
	f.link.saw(e.Seq)
	f.traffic.add(out, packets, e.Bytes)
	// On loopback, one side receives what the other sends. It is counted once.
	n.total.add(out || e.Dir == event.Loopback, packets, e.Bytes)
	if e.Host != "" {
		n.name(k, f, e, out, packets)
	}
}

// direction returns which side opened a flow, given its first packet.
func direction(dir string, flags tcpFlags, packets int64) string {
	if flags&(syn|ack) == syn|ack && packets == 0 { // SYN+ACK without a recorded SYN
		switch dir {
		case event.Egress:
			return event.Ingress
		case event.Ingress:
			return event.Egress
		}
	}
	return dir
}

// flags updates the state of a TCP connection.
func (f *flow) flags(out bool, flags tcpFlags, fresh bool, n *NetLog) {
	if flags == 0 {
		return
	}
	began := out != f.flipped // the packet is from the side that opened the connection
	if flags&(syn|ack) == syn && !fresh {
		// After the end of a connection, a SYN opens another one on the same ports. Otherwise it
		// is taken for a retransmission.
		if s := f.state(); s == Refused || s == Closed || s == Reset {
			f.out, f.in, f.flipped = 0, 0, !out
			if f.dir != event.Loopback {
				f.dir = event.Egress
				if !out {
					f.dir = event.Ingress
				}
			}
			f.times++
			n.conns++
			began = true
		}
	}
	was := f.state()
	if began {
		f.out |= flags
	} else {
		f.in |= flags
	}
	if was != Refused && f.state() == Refused {
		f.refused++
		n.refusals++
	}
}

// state derives the state from the flags that each side has sent. A flow record that is a sum
// contains the flags of both sides.
func (f *flow) state() string {
	switch {
	case f.out == 0 && f.in == 0:
		return Open
	case f.out&syn != 0 && f.in&rst != 0 && f.in&syn == 0:
		// A closed port answers a SYN with RST (RFC 9293, section 3.5.2).
		return Refused
	case (f.out|f.in)&rst != 0:
		return Reset
	case (f.out|f.in)&fin != 0:
		return Closed
	case f.out&syn != 0 && f.in == 0:
		return Unanswered
	}
	return Established
}

// Flows returns the flows in order of their start, and the total number of flows. If there
// were too many to keep, it returns those with the most bytes.
func (n *NetLog) Flows() ([]Flow, Count) {
	list := n.flows.rows()
	slices.SortFunc(list, func(a, b *row[flowKey, flow]) int { return cmp.Compare(a.v.link.First, b.v.link.First) })
	out := make([]Flow, 0, len(list))
	for _, r := range list {
		out = append(out, n.describe(r))
	}
	return out, n.flows.distinct()
}

func (n *NetLog) describe(r *row[flowKey, flow]) Flow {
	f := &r.v
	d := Flow{
		Proto: r.key.proto, Dir: f.dir, Local: Text(r.key.local), Remote: Text(r.key.remote), Host: Text(f.host),
		PID: f.pid, Comm: Text(f.comm), State: f.state(), Times: f.times, Refused: f.refused, AtLeast: r.late,
		Begin: instant(f.beginTS), End: instant(max(f.lastTS, f.beginTS)), Traffic: f.traffic, Events: f.link,
	}
	// A firewall may refuse a connection by ICMP, without RST. The kernel maps "port
	// unreachable" to ECONNREFUSED (icmp_err_convert in net/ipv4/icmp.c).
	if d.State == Unanswered && n.failed.find(connectKey{r.key.remote, -econnrefused}) != nil {
		d.State, d.Refused = Refused, max(d.Refused, 1)
	}
	d.Events.Query = betweenQuery(r.key.proto, r.key.local, r.key.remote, "")
	return d
}

// betweenQuery returns the query for traffic between two addresses in either direction.
func betweenQuery(proto, a, b, port string) Text {
	ends := literal(a) + "," + literal(b)
	// The jail used several addresses: see peer.local.
	if a == "" {
		ends = literal(b)
		return allOf("type:net", "proto:"+literal(proto), "dst:"+ends, "port:"+port)
	}
	return allOf("type:net", "proto:"+literal(proto), "src:"+ends, "dst:"+ends, "port:"+port)
}

// Network summarizes the network traffic of a jail.
type Network struct {
	Total          Traffic         `json:"total"`
	Refused        int64           `json:"refused"`     // refused connections
	Connections    Count           `json:"connections"` // flows, plus reconnections on the same ports
	Flows          Count           `json:"flows"`
	Peers          Count           `json:"peers"`
	List           []Peer          `json:"list"` // sorted by bytes, descending
	More           Traffic         `json:"more"` // traffic of peers that are not in List
	Names          Count           `json:"names"`
	Lookups        []Name          `json:"lookups"` // resolved names
	Failed         int64           `json:"failed"`  // failed connect calls
	FailedConnects []FailedConnect `json:"fails"`   // by address; the most frequent first
	FailsMore      int64           `json:"fails_more"`
	Lost           Lost            `json:"lost"` // lost packet events
}

// A Peer summarizes all connections with one host and service.
type Peer struct {
	Proto       string `json:"proto"`
	Dir         string `json:"dir"`
	Host        Text   `json:"host"` // its name if the jail resolved it, otherwise its address
	Port        int    `json:"port,omitempty"`
	AtLeast     bool   `json:"at_least,omitempty"`
	Connections int64  `json:"connections"`
	Refused     int64  `json:"refused"`
	Unanswered  int64  `json:"unanswered"`
	PID         int32  `json:"pid,omitempty"` // PID of the first connection
	Comm        Text   `json:"comm,omitempty"`
	Traffic
	Began  time.Time `json:"began"`
	Events Link      `json:"events"`
}

type peerKey struct {
	proto, dir, host string
	port             uint16
	named            bool
}

type peer struct {
	connections, refused, unanswered int64
	pid                              int32
	comm                             string
	by                               []Who  // the first few processes that used it
	byMore                           bool   // other processes also used it
	local                            string // the jail's address; "" if it used several
	began, last                      int64  // milliseconds
	traffic                          Traffic
	link                             Link
}

// foldPeer adds a flow to its peer.
func foldPeer(to *table[peerKey, peer], k flowKey, f *flow) {
	key := peerKey{proto: k.proto, dir: f.dir, host: f.host, named: f.host != ""}
	if !key.named {
		key.host = hostOf(k.remote)
	}
	key.port = portOf(k.remote)
	if f.dir == event.Ingress { // the service is the jail's port
		key.port = portOf(k.local)
	}
	p, fresh := to.get(key)
	if fresh {
		p.pid, p.comm, p.local = f.pid, f.comm, hostOf(k.local)
	}
	if p.local != "" && p.local != hostOf(k.local) {
		p.local = ""
	}
	if fresh || f.beginTS < p.began {
		p.began = f.beginTS
	}
	p.last = max(p.last, f.lastTS)
	if f.pid != 0 {
		p.by, p.byMore = addUser(p.by, p.byMore, Who{f.pid, Text(f.comm)})
	}
	p.connections += f.times
	p.refused += f.refused
	if s := f.state(); s == Unanswered {
		p.unanswered++
	}
	p.traffic.plus(&f.traffic, 1)
	p.link.saw(f.link.First)
	p.link.saw(f.link.Last)
}

// addUser adds w to the list of the first few processes, or sets more.
func addUser(by []Who, more bool, w Who) ([]Who, bool) {
	switch {
	case slices.ContainsFunc(by, func(one Who) bool { return one.PID == w.PID }):
		return by, more
	case len(by) < 8:
		return append(slices.Clip(by), w), more // clipped, because a copy of the table shares the slice
	}
	return by, true
}

// A Name is a host name that the jail resolved.
type Name struct {
	Host      Text   `json:"host"`
	AtLeast   bool   `json:"at_least,omitempty"`
	Addresses []Text `json:"addresses"` // the first few addresses that it connected to
	More      bool   `json:"more,omitempty"`
	Traffic
	Events Link `json:"events"`
}

type name struct {
	addrs   []string
	more    bool
	traffic Traffic
	link    Link
}

func (n *NetLog) name(k flowKey, f *flow, e *event.Event, out bool, packets int64) {
	host := cut(e.Host)
	r, _ := n.names.get(host)
	r.traffic.add(out, packets, e.Bytes)
	r.link.saw(e.Seq)
	if f.host == host {
		return
	}
	f.host = keep(host)
	if addr := hostOf(k.remote); !slices.Contains(r.addrs, addr) {
		if len(r.addrs) < 4 {
			r.addrs = append(r.addrs, keep(addr))
		} else {
			r.more = true
		}
	}
}

// hostOf returns an address without its port.
func hostOf(addr string) string {
	if ap, err := netip.ParseAddrPort(addr); err == nil {
		return ap.Addr().String()
	}
	return addr
}

func portOf(addr string) uint16 {
	ap, _ := netip.ParseAddrPort(addr)
	return ap.Port()
}

// A FailedConnect is an address with failed connections, and the error.
type FailedConnect struct {
	Addr    Text   `json:"addr"`
	Errno   string `json:"errno"`
	Count   int64  `json:"count"`
	AtLeast bool   `json:"at_least,omitempty"`
	PID     int32  `json:"pid"` // PID of the first call
	Comm    Text   `json:"comm"`
	Events  Link   `json:"events"`
}

type connectKey struct {
	addr string
	ret  int64
}

type connect struct {
	count int64
	pid   int32
	comm  string
	link  Link
}

const econnrefused = 111

// pendingErrnos are the errors of connect that are not failures: connect(2) is in progress, was
// interrupted or will be restarted.
var pendingErrnos = []string{"EINPROGRESS", "EALREADY", "EISCONN", "EINTR", "EAGAIN", "ERESTARTSYS", "ERESTARTNOINTR", "ERESTARTNOHAND"}

func (n *NetLog) connect(e *event.Event) {
	// The result of a connect in progress is read later from SO_ERROR (connect(2)) and is in no
	// event. Only the packets show it.
	if slices.Contains(pendingErrnos, event.ErrnoName(e.Ret)) {
		return
	}
	c, fresh := n.failed.get(connectKey{cut(e.Addr), e.Ret})
	if fresh {
		c.pid, c.comm = e.PID, keep(e.Comm)
	}
	c.count++
	n.fails++
	c.link.saw(e.Seq)
}

func (n *NetLog) report(rows int) Network {
	// Flows are added to a copy, because they stay in their table and are added again to the
	// next report.
	peers := n.peers.clone()
	for _, r := range n.flows.rows() {
		foldPeer(peers, r.key, &r.v)
	}
	out := Network{Total: n.total, Connections: Count{n.conns, n.flows.lost}, Refused: n.refusals, Flows: n.flows.distinct(), Peers: peers.distinct(), More: n.total,
		List: []Peer{}, Names: n.names.distinct(), Lookups: []Name{}, FailedConnects: []FailedConnect{}, Failed: n.fails, FailsMore: n.fails, Lost: n.lost}
	list := peers.rows()
	for _, r := range list[:min(len(list), rows)] {
		k, p := r.key, &r.v
		d := Peer{Proto: k.proto, Dir: k.dir, Host: Text(k.host), Port: int(k.port), AtLeast: r.late, Connections: p.connections,
			Refused: p.refused, Unanswered: p.unanswered, PID: p.pid, Comm: Text(p.comm), Traffic: p.traffic, Began: instant(p.began), Events: p.link}
		d.Events.Query = k.query(p.local)
		out.List = append(out.List, d)
		// The total counts loopback packets as sent: see packet.
		once := p.traffic
		if k.dir == event.Loopback {
			once = Traffic{PacketsOut: sum(once.PacketsOut, once.PacketsIn), BytesOut: sum(once.BytesOut, once.BytesIn)}
		}
		out.More.plus(&once, -1)
	}
	names := n.names.rows()
	for _, r := range names[:min(len(names), rows)] {
		r.v.link.Query = query("type", "net", "host", r.key)
		out.Lookups = append(out.Lookups, Name{Text(r.key), r.late, texts(r.v.addrs), r.v.more, r.v.traffic, r.v.link})
	}
	fails := n.failed.rows()
	for _, r := range fails[:min(len(fails), rows)] {
		r.v.link.Query = query("type", "syscall", "name", "connect", "ret", errno(r.key.ret))
		out.FailsMore -= r.v.count
		out.FailedConnects = append(out.FailedConnects, FailedConnect{Text(r.key.addr), errno(r.key.ret), r.v.count, r.late, r.v.pid, Text(r.v.comm), r.v.link})
	}
	return out
}

func (k *peerKey) query(local string) Text {
	port := ""
	if k.port > 0 {
		port = fmt.Sprint(k.port)
	}
	if k.named {
		return query("type", "net", "proto", k.proto, "host", k.host, "port", port)
	}
	return betweenQuery(k.proto, local, k.host, port)
}

// WriteNet writes flows for people. Nothing in it drives a terminal.
func WriteNet(w io.Writer, flows []Flow) error {
	rows := [][]string{{"TIME", "PROTO", "LOCAL", "", "REMOTE", "STATE", "OUT", "IN", "PROCESS"}}
	for _, f := range flows {
		arrow := "→"
		if f.Dir == event.Ingress {
			arrow = "←"
		}
		rows = append(rows, []string{
			f.Begin.Format("15:04:05"), visible(f.Proto, 16), visible(string(f.Local), 64), arrow, f.far(), f.status(),
			size(f.BytesOut), size(f.BytesIn), f.process(),
		})
	}
	return writeTable(w, rows, "......rr")
}

// far returns the remote end, by name if it was resolved.
func (f *Flow) far() string {
	s := visible(string(f.Remote), 64)
	if f.Host != "" {
		s = visible(string(f.Host), 128) + " (" + s + ")"
	}
	return s
}

func (f *Flow) status() string {
	if f.Times > 1 {
		return fmt.Sprintf("%s (%d ×)", f.State, f.Times)
	}
	return f.State
}

func (f *Flow) process() string {
	if f.PID == 0 {
		return ""
	}
	return Who{f.PID, f.Comm}.String()
}

// Service returns a peer in the common notation: "tcp example.com:443".
func (p Peer) Service() string {
	s := visible(string(p.Host), 128)
	if p.Port > 0 {
		if strings.Contains(s, ":") {
			s = "[" + s + "]"
		}
		s += fmt.Sprintf(":%d", p.Port)
	}
	return visible(p.Proto, 16) + " " + s
}
