// Package netns gives a jail a network of its own: a named network namespace
// that belongs to the host, so that root in the jail has no power over it, and
// if the jail may reach anything, a wire from it.
//
// Every jail with a wire sees the same small network: itself at 10.0.0.2 on
// eth0, the way out at 10.0.0.1. Where the wire ends is how far it reaches.
//
// Of a Full network it ends on the host. Inside the namespace the source of what
// leaves becomes the jail's transit address, one of a pool on this host, and on
// the host that becomes the host's own. What comes back finds the same way in
// reverse; nothing else comes in. The host's end of the wire has no address.
//
//	jail: 10.0.0.2 ──snat──▶ 100.64.0.7 ═ veth ═▶ host ──masquerade──▶ outside
//
// Of a Gated network it ends in a second namespace, the gate, which has no other
// way out: no route, no forwarding, nothing but sockets that the daemon opens in
// it. Every TCP connection, to wherever, arrives at the one of them on ProxyPort,
// every question for a name at that on port 53, and all else is refused.
//
//	jail: 10.0.0.2 ═ veth ═▶ gate 10.0.0.1: the daemon's sockets, and nothing behind
//
// Of a Grouped network it ends at a switch in a namespace of the group. Members
// see each other at their transit addresses; there is nothing else to see but
// the daemon, which answers for names.
//
// One table of rules on the host, named glasshouse, lets jails out and refuses
// them the host itself, each other, and link-local addresses, among which are
// the metadata services of clouds. There is no IPv6 on the wire.
//
// The package keeps no state: a network is found by its name and its path. Paths
// and links are those of the process's own namespaces.
package netns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// Pool is where transit addresses come from unless Options says otherwise: a
// part of the range that providers use between themselves and their customers
// (RFC 6598), which neither the Internet nor private networks should need.
var Pool = netip.MustParsePrefix("100.64.0.0/16")

// Options say what network to make. Path must be set.
type Options struct {
	Path string // where the namespace is bound: a file this package makes

	Reach  Reach
	Group  string       // of Grouped: where the group's namespace is bound
	Direct bool         // for gVisor, which moves the address out of the namespace's own stack: eth0 has the transit address itself
	Index  int          // which address of the pool is the jail's; no two jails may share one
	Pool   netip.Prefix // zero means Pool

	// Await has the namespace get the wire of the given name, which another has,
	// from Pull and Plug. Until then what stands in for it leads nowhere.
	Await bool

	// At is the path whose wire it is, if that is another's. Default: Path.
	At string
}

// at is the path that what belongs to the wire is named by.
func (o Options) at() string { return cmp.Or(o.At, o.Path) }

// Reach is how far a network goes.
type Reach int

const (
	Alone   Reach = iota // loopback and nothing else
	Gated                // to a gate, in which only the daemon listens
	Grouped              // to others of the same group
	Full                 // outward through the host
)

// Transit returns the address of a pool that is a jail's. Of no pool it is Pool.
func Transit(pool netip.Prefix, index int) (netip.Addr, error) {
	if !pool.IsValid() {
		pool = Pool
	}
	if !pool.Addr().Is4() || index < 0 || index >= 1<<(32-pool.Bits())-2 {
		return netip.Addr{}, fault.Newf(fault.Exhausted, "netns.Create", pool.String(), "no address %d in the pool", index)
	}
	a := pool.Masked().Addr().As4()
	n := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3])
	n += uint32(index) + 1
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}), nil
}

// A Net is a jail's network. It holds nothing open and need not be closed.
type Net struct {
	Name    string
	Path    string
	Link    string     // the host's end of the wire; "" without one there
	Transit netip.Addr // of Full and Grouped
	Door    string     // of Gated and Grouped: the namespace the daemon listens in, at Gateway

	at string // the path that what belongs to the wire is named by
}

// Create makes the network of the given name. A name, path or transit address
// that is in use is a fault.Conflict. If Create fails, nothing of it is left.
func Create(ctx context.Context, name string, o Options) (_ *Net, err error) {
	if name == "" || o.Path == "" {
		return nil, fault.Newf(fault.Invalid, "netns.Create", name, "a network needs a name and a path")
	}
	n, err := o.net(name)
	if err != nil {
		return nil, err
	}
	if err := bind(o.Path); err != nil {
		return nil, fmt.Errorf("make network %s: %w", name, err)
	}
	if err = context.Cause(ctx); err == nil {
		err = n.wire(o)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make network %s: %w", name, err), unbind(o.Path))
	}
	return n, nil
}

// net is what a network with these options is.
func (o Options) net(name string) (n *Net, err error) {
	n = &Net{Name: name, Path: o.Path, at: o.at()}
	if o.Reach == Full || o.Reach == Grouped {
		n.Transit, err = Transit(o.Pool, o.Index)
	}
	return n, err
}

// wire connects the network as far as it is to reach, or leaves nothing.
func (n *Net) wire(o Options) error {
	if o.Await && o.Reach != Alone {
		return n.standIn(o)
	}
	switch o.Reach {
	case Gated:
		n.Door = gatePath(n.at)
		return n.connectGate()
	case Grouped:
		n.Door = o.Group
		return n.join(o)
	case Full:
		n.Link = linkName(n.Name)
		return n.connect(o.Direct)
	}
	return nil
}

// Clean removes the network of the given name and path, whatever of it there is.
// The namespace itself ends with the last process in it, and a gate with the
// last socket.
func Clean(name, path string) error {
	return errors.Join(disconnect(name), leave(name, path), unbind(gatePath(path)), unbind(path))
}

// CleanInner removes the namespace bound to path, and leaves the wire that was in
// it to who has it now.
func CleanInner(path string) error { return unbind(path) }

// bind makes a network namespace with loopback up and binds it to path.
func bind(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if bound(path) {
		return fault.Newf(fault.Conflict, "netns.Create", path, "there is a network already")
	}
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|unix.O_CLOEXEC, 0o444)
	if err != nil {
		return err
	}
	f.Close()
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := loopback(); err != nil {
			return err
		}
		if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
			return &fs.PathError{Op: "bind", Path: path, Err: err}
		}
		return unix.Mount("", path, "", unix.MS_PRIVATE, "")
	})
	if err != nil {
		return errors.Join(err, unbind(path))
	}
	return nil
}

// bound reports whether path is a network namespace.
func bound(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}

// unbind undoes bind, however far it came.
func unbind(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err == unix.EINVAL || err == unix.ENOENT || err == unix.ENOTDIR {
			break
		}
		if err != nil {
			return &fs.PathError{Op: "unmount", Path: path, Err: err}
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
		return fmt.Errorf("remove network: %w", err)
	}
	return nil
}

// loopback prepares the namespace of this thread: its loopback goes up, and
// since root in the jail has no power here, what a jail's root expects to be
// able to do is opened to everybody in it: to listen on any port and to ping.
// Sockets of multipath TCP, which Go's servers ask for first, could not be
// written down; where there are none, programs take TCP.
func loopback() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("loopback up: %w", err)
	}
	return errors.Join(
		sysctl("net/ipv4/ip_unprivileged_port_start", "0"),
		sysctl("net/ipv4/ping_group_range", "0 2147483647"),
		optional(sysctl("net/mptcp/enabled", "0")),
	)
}

// optional is err, unless it says that the kernel has no such setting.
func optional(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// sysctl sets a setting of the thread's network namespace.
func sysctl(name, value string) error {
	if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0); err != nil {
		return fmt.Errorf("set %s: %w", strings.ReplaceAll(name, "/", "."), err)
	}
	return nil
}

// Do runs f in the network namespace bound to path. Sockets that f opens stay
// there. f runs on a thread of its own, and what it starts on other goroutines
// runs outside.
func Do(path string, f func() error) error {
	ns, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("enter network: %w", err)
	}
	defer ns.Close()
	if !bound(path) {
		return fault.Newf(fault.NotFound, "netns.Do", path, "not a network")
	}
	return onThread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network %s: %w", path, err)
		}
		return f()
	})
}

// onThread runs f on a thread that f may move to another network namespace. It
// is moved back afterwards; if that is impossible the thread ends, for a
// goroutine that ends without unlocking its thread takes it along.
func onThread(f func() error) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		home, e := os.Open("/proc/thread-self/ns/net")
		if e != nil {
			runtime.UnlockOSThread()
			err = e
			return
		}
		defer home.Close()
		defer func() {
			if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			}
		}()
		err = errors.New("the function did not return") // runtime.Goexit
		err = f()
	}()
	<-done
	return err
}

// MountSysfs mounts on dst, read-only, the /sys of the network namespace bound
// to path: it shows the links of that namespace and of no other.
func MountSysfs(path, dst string) error {
	mnt := -1
	err := Do(path, func() (err error) {
		fsfd, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
		if err != nil {
			return fmt.Errorf("fsopen: %w", err)
		}
		defer unix.Close(fsfd)
		if err := unix.FsconfigCreate(fsfd); err != nil {
			return fmt.Errorf("fsconfig: %w", err)
		}
		mnt, err = unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC,
			unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
		return err
	})
	if err != nil {
		return fmt.Errorf("mount sysfs of %s: %w", path, err)
	}
	defer unix.Close(mnt)
	if err := unix.MountSetattr(mnt, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Propagation: unix.MS_PRIVATE}); err != nil {
		return fmt.Errorf("keep sysfs private: %w", err)
	}
	if err := unix.MoveMount(mnt, "", unix.AT_FDCWD, dst, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount sysfs: %w", &fs.PathError{Op: "move_mount", Path: dst, Err: err})
	}
	return nil
}

// Probe makes a network without a wire and removes it.
func Probe() error { return probe("netns.Probe", Options{}) }

// ProbeFull makes a network with a wire and removes it. It leaves the host's
// rules and forwarding in place, as any such network does.
func ProbeFull() error {
	// The last address of the pool, so as not to take one from a jail.
	return probe("netns.ProbeFull", Options{Reach: Full, Index: 1<<(32-Pool.Bits()) - 3})
}

func probe(op string, o Options) error {
	if os.Geteuid() != 0 {
		return fault.Cannot(op, "making a network needs root", "run the daemon as root")
	}
	dir, err := os.MkdirTemp("", "glasshouse-probe-")
	if err != nil {
		return fmt.Errorf("probe networks: %w", err)
	}
	defer os.RemoveAll(dir)
	name := fmt.Sprintf("probe-%d-%d", os.Getpid(), time.Now().UnixNano())
	o.Path = filepath.Join(dir, "net")
	_, err = Create(context.Background(), name, o)
	for _, known := range []error{unix.EPERM, unix.EACCES, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EROFS, unix.ENOENT} {
		if errors.Is(err, known) {
			return fault.Cannot(op, err.Error(), "give the daemon CAP_NET_ADMIN and CAP_SYS_ADMIN, a writable /proc/sys/net, and the kernel modules veth, nf_tables, nft_ct, nft_nat, nft_masq and nft_reject_inet")
		}
	}
	if errors.Is(err, fault.Conflict) {
		return nil // somebody else is probing, with success
	}
	if err != nil {
		return fmt.Errorf("probe networks: %w", err)
	}
	return Clean(name, o.Path)
}
