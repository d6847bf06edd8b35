package access

import (
	"fmt"
	"net"
	"os"
	"os/user"
	"slices"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// A Peer is the process at the other end of a unix socket, with the credentials that the
// kernel recorded when it connected (SO_PEERCRED, unix(7)).
type Peer struct {
	PID, UID, GID int
	Groups        []int
}

// PeerOf returns the peer of a connection, or fault.Unsupported if it is not a
// unix socket's.
func PeerOf(c net.Conn) (Peer, error) {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return Peer{}, fault.Cannot("access.PeerOf", fmt.Sprintf("a %T has no peer credentials", c), "connect over the unix socket")
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return Peer{}, fmt.Errorf("get the descriptor of the socket: %w", err)
	}
	var p Peer
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			credErr = fmt.Errorf("read peer credentials: %w", err)
			return
		}
		p = Peer{PID: int(cred.Pid), UID: int(cred.Uid), GID: int(cred.Gid)}
		p.Groups, credErr = peerGroups(fd)
	})
	if err != nil {
		return Peer{}, fmt.Errorf("read peer credentials: %w", err)
	}
	return p, credErr
}

// peerGroups returns the supplementary groups of a socket's peer. It returns the process's own
// groups, not those of /etc/group, which may have changed since (SO_PEERGROUPS).
func peerGroups(fd uintptr) ([]int, error) {
	buf := make([]uint32, 32)
	for {
		size := uint32(len(buf) * 4)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch errno {
		case 0:
			groups := make([]int, size/4)
			for i := range groups {
				groups[i] = int(buf[i])
			}
			return groups, nil
		case unix.ERANGE: // size is now the required size
			buf = make([]uint32, max(int(size/4), 2*len(buf)))
		default:
			return nil, fmt.Errorf("read peer groups: %w", errno)
		}
	}
}

// Peers decides the role of callers on the unix socket: root and the daemon's
// own user are admins, members of Group are operators, and others are refused.
type Peers struct {
	Group string // a name or a gid; empty: none
}

// Caller returns the caller for p, or fault.Denied.
func (ps Peers) Caller(p Peer) (Caller, error) {
	c := Caller{Name: userName(p.UID), Local: true, UID: p.UID}
	if p.UID == 0 || p.UID == os.Geteuid() {
		c.Role = Admin
		return c, nil
	}
	if gid, ok := ps.gid(); ok && (p.GID == gid || slices.Contains(p.Groups, gid)) {
		c.Role = Operator
		return c, nil
	}
	remedy := "use a token, or configure a group for the daemon's socket"
	if ps.Group != "" {
		remedy = "use a token, or join the group " + ps.Group
	}
	return Caller{}, &fault.Error{
		Op: "access.Caller", On: c.Name, Kind: fault.Denied, Remedy: remedy,
		Err: fmt.Errorf("uid %d may not use this socket", p.UID),
	}
}

func (ps Peers) gid() (int, bool) {
	if ps.Group == "" {
		return 0, false
	}
	if gid, err := strconv.Atoi(ps.Group); err == nil {
		return gid, true
	}
	g, err := user.LookupGroup(ps.Group)
	if err != nil {
		return 0, false
	}
	gid, err := strconv.Atoi(g.Gid)
	return gid, err == nil
}

func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return "uid " + strconv.Itoa(uid)
}
