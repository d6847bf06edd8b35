package process

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// A Socket is one end of a connection, or where one may come in.
type Socket struct {
	Proto  string // tcp, udp
	Local  string // address and port
	Remote string // "" if it has none
	State  string // listening, established, …; of udp: open
}

// maxTable bounds what is read of one table of sockets.
const maxTable = 4 << 20

// states are those of tcp, by their numbers in the kernel's include/net/tcp_states.h.
var states = []string{
	"", "established", "connecting", "accepting", "closing", "closing", "closing", "closed", "closing", "closing", "listening", "closing", "accepting",
}

// sockets returns the sockets in a process's network, by inode.
func sockets(pid int) (map[uint64]Socket, error) {
	dir, err := openDir(pid)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	all := map[uint64]Socket{}
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6"} {
		b, err := read(dir, "net/"+table, maxTable)
		if os.IsNotExist(err) && strings.HasSuffix(table, "6") {
			continue // a host without IPv6
		}
		if err != nil {
			return nil, err
		}
		parseTable(strings.TrimSuffix(table, "6"), b, all)
	}
	return all, nil
}

// parseTable reads a /proc/net/tcp or its like. What it does not understand it
// leaves out.
func parseTable(proto string, b []byte, into map[uint64]Socket) {
	for line := range bytes.Lines(b) {
		fields := strings.Fields(string(line))
		if len(fields) < 10 {
			continue
		}
		local, ok1 := parseAddr(fields[1])
		remote, ok2 := parseAddr(fields[2])
		state, err := strconv.ParseUint(fields[3], 16, 8)
		inode, err2 := strconv.ParseUint(fields[9], 10, 64)
		if !ok1 || !ok2 || err != nil || err2 != nil || inode == 0 {
			continue
		}
		s := Socket{Proto: proto, Local: local.String(), State: "open"}
		if remote.Port() != 0 {
			s.Remote = remote.String()
		}
		if proto == "tcp" {
			s.State = ""
			if state < uint64(len(states)) {
				s.State = states[state]
			}
		}
		into[inode] = s
	}
}

// parseAddr reads an address and port as the kernel prints them: words of 32
// bits in the order of this machine.
func parseAddr(s string) (a netip.AddrPort, ok bool) {
	host, port, found := strings.Cut(s, ":")
	n, err := strconv.ParseUint(port, 16, 16)
	b, err2 := hex.DecodeString(host)
	if !found || err != nil || err2 != nil || len(b)%4 != 0 {
		return a, false
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	addr, ok := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(addr.Unmap(), uint16(n)), ok
}

// sockets sets those of the network's sockets that a process holds.
func (r *reading) sockets(dir *os.File, p *Process) (cut bool, err error) {
	if len(r.network) == 0 {
		return false, nil
	}
	fds, err := openAt(dir, "fd", 0)
	if err != nil {
		return false, err
	}
	defer fds.Close()
	most := min(maxFDs, r.fds)
	names, err := fds.Readdirnames(most + 1)
	if err != nil && err != io.EOF {
		return false, err
	}
	if cut = len(names) > most; cut {
		names = names[:most]
	}
	r.fds -= len(names)
	for _, name := range names {
		to, err := readlink(fds, name)
		if err != nil {
			continue // closed meanwhile
		}
		var inode uint64
		if _, err := fmt.Sscanf(to, "socket:[%d]", &inode); err != nil {
			continue
		}
		if s, ok := r.network[inode]; ok && !slices.Contains(p.Sockets, s) {
			p.Sockets = append(p.Sockets, s)
		}
	}
	slices.SortFunc(p.Sockets, func(a, b Socket) int {
		return strings.Compare(a.Proto+a.Local+a.Remote, b.Proto+b.Local+b.Remote)
	})
	return cut, nil
}
