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

	"golang.org/x/sys/unix"
)

// A Socket is one end of a connection, or a listener.
type Socket struct {
	Proto  string // tcp, udp
	Local  string // address and port
	Remote string // "" without a peer
	State  string // listening, established, …; of udp: open
}

// maxTable limits the size of one socket table.
const maxTable = 4 << 20

// states are the names of the TCP states, indexed by their numbers in include/net/tcp_states.h of
// the kernel.
var states = []string{
	"", "established", "connecting", "accepting", "closing", "closing", "closing", "closed", "closing", "closing", "listening", "closing", "accepting",
}

// sockets returns the sockets of a process's network namespace that are in the given tables, by
// inode.
func sockets(pid int, tables map[string]bool) (map[uint64]Socket, error) {
	all := map[uint64]Socket{}
	if len(tables) == 0 {
		return all, nil
	}
	dir, err := openDir(pid)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	for table := range tables {
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

// parseTable parses /proc/net/tcp and similar tables. It skips lines that it cannot parse.
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
		// A connection in TIME_WAIT has no socket any longer, and the inode number 0.
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

// parseAddr parses an address and port as the kernel prints them: 32-bit words in native byte
// order.
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

// tables maps a protocol, as named by the kernel, to the table that lists its sockets. Sockets of
// multipath TCP are in the table of their subflows.
var tables = map[string]string{
	"TCP": "tcp", "MPTCP": "tcp", "TCPv6": "tcp6", "MPTCPv6": "tcp6", "UDP": "udp", "UDPv6": "udp6",
}

// inodes returns the inodes of the TCP and UDP sockets that a process has open, and records the
// tables that list them. The kernel walks the connections of the whole host to read a TCP table,
// which takes milliseconds, and most jails have no TCP sockets.
func (r *reading) inodes(dir *os.File) (all []uint64, cut bool, err error) {
	fds, err := openAt(dir, "fd", 0)
	if err != nil {
		return nil, false, err
	}
	defer fds.Close()
	most := min(maxFDs, r.fds)
	names, err := fds.Readdirnames(most + 1)
	if err != nil && err != io.EOF {
		return nil, false, err
	}
	if cut = len(names) > most; cut {
		names = names[:most]
	}
	r.fds -= len(names)
	var proto [16]byte
	for _, name := range names {
		to, err := readlink(fds, name)
		if err != nil {
			continue // closed meanwhile
		}
		digits, is := strings.CutPrefix(to, "socket:[")
		inode, err := strconv.ParseUint(strings.TrimSuffix(digits, "]"), 10, 64)
		if !is || err != nil {
			continue
		}
		// A socket cannot be opened through /proc (ENXIO, open(2)), but getxattr(2) follows the
		// link.
		n, err := unix.Getxattr(fmt.Sprintf("/proc/self/fd/%d/%s", fds.Fd(), name), "system.sockprotoname", proto[:])
		if err != nil {
			continue
		}
		if table := tables[unix.ByteSliceToString(proto[:n])]; table != "" {
			r.tables[table] = true
			all = append(all, inode)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), cut, nil
}

// sorted returns sockets in an order that does not depend on their inode numbers.
func sorted(all []Socket) []Socket {
	slices.SortFunc(all, func(a, b Socket) int {
		return strings.Compare(a.Proto+a.Local+a.Remote, b.Proto+b.Local+b.Remote)
	})
	return slices.Compact(all)
}
