package report

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"glasshouse/observe/event"
)

// Hosts lists the hosts with which the jail communicated.
type Hosts struct {
	List  []Host  `json:"items"` // sorted by bytes, most first
	Count Count   `json:"count"`
	Total Traffic `json:"total"`
	More  Traffic `json:"more"` // traffic of hosts that are not in List
	Lost  Lost    `json:"lost"`
}

// A Host summarizes the traffic between the jail and one host.
type Host struct {
	Host        Text  `json:"host"` // its name if the jail resolved it, otherwise its address
	Connections int64 `json:"connections"`
	Refused     int64 `json:"refused"`
	Unanswered  int64 `json:"unanswered"`
	Traffic
	First     time.Time `json:"first,omitzero"`
	Last      time.Time `json:"last,omitzero"`
	Processes []Who     `json:"processes"` // the first few
	ProcsMore bool      `json:"processes_more,omitempty"`
	Services  []Service `json:"services"` // sorted by bytes, descending
}

// A Service is one port of a host, or one port of the jail if the host opened the connection.
type Service struct {
	Proto       string `json:"proto"`
	Dir         string `json:"dir"`
	Port        int    `json:"port,omitempty"`
	Connections int64  `json:"connections"`
	Refused     int64  `json:"refused"`
	Unanswered  int64  `json:"unanswered"`
	Traffic
	Events Link `json:"events"`
}

// Cut moves all hosts after the first rows to More.
func (hs *Hosts) Cut(rows int) {
	for _, h := range hs.List[min(rows, len(hs.List)):] {
		hs.More.plus(h.once(), 1)
	}
	hs.List = hs.List[:min(rows, len(hs.List))]
}

// Hosts returns the first rows of the hosts that the jail communicated with.
func (n *NetLog) Hosts(rows int) Hosts {
	peers := n.peers.clone()
	for _, r := range n.flows.rows() {
		foldPeer(peers, r.key, &r.v)
	}
	byName := map[string]*Host{}
	var hosts []*Host
	for _, r := range peers.rows() {
		// DNS names are case-insensitive (RFC 4343), and the jail can use any spelling.
		name := strings.ToLower(r.key.host)
		h := byName[name]
		if h == nil {
			h = &Host{Host: Text(r.key.host), Processes: []Who{}}
			byName[name] = h
			hosts = append(hosts, h)
		}
		h.add(&r.key, &r.v)
	}
	slices.SortStableFunc(hosts, func(a, b *Host) int { return cmp.Compare(b.bytes(), a.bytes()) })
	out := Hosts{List: []Host{}, Count: Count{N: int64(len(hosts)), About: peers.lost}, Total: n.total, More: n.total, Lost: n.lost}
	for _, h := range hosts[:min(len(hosts), rows)] {
		out.List = append(out.List, *h)
		out.More.plus(h.once(), -1)
	}
	return out
}

func (h *Host) bytes() int64 { return sum(h.BytesOut, h.BytesIn) }

func (h *Host) add(k *peerKey, p *peer) {
	s := Service{Proto: k.proto, Dir: k.dir, Port: int(k.port), Connections: p.connections, Refused: p.refused,
		Unanswered: p.unanswered, Traffic: p.traffic, Events: p.link}
	s.Events.Query = k.query(p.local)
	h.Services = append(h.Services, s)
	h.Connections += p.connections
	h.Refused += p.refused
	h.Unanswered += p.unanswered
	h.Traffic.plus(&p.traffic, 1)
	if first := instant(p.began); h.First.IsZero() || first.Before(h.First) {
		h.First = first
	}
	if last := instant(max(p.last, p.began)); last.After(h.Last) {
		h.Last = last
	}
	for _, w := range p.by {
		h.Processes, h.ProcsMore = addUser(h.Processes, h.ProcsMore, w)
	}
	h.ProcsMore = h.ProcsMore || p.byMore
}

// once returns the traffic, with loopback traffic counted once.
func (h *Host) once() *Traffic {
	var t Traffic
	for _, s := range h.Services {
		if s.Dir == event.Loopback {
			s.Traffic = Traffic{PacketsOut: sum(s.PacketsOut, s.PacketsIn), BytesOut: sum(s.BytesOut, s.BytesIn)}
		}
		t.plus(&s.Traffic, 1)
	}
	return &t
}
