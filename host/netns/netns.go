// Package netns gives a jail its own network: a named network namespace that belongs to the host,
// so that root in the jail has no capabilities over it, and a veth link if the jail may reach any
// address.
//
// Every jail with a link sees the same small network: itself at 10.0.0.2 on eth0 and the gateway at
// 10.0.0.1. The other end of the link determines what the jail can reach.
//
// In a Full network the other end is on the host. Inside the namespace the source of outgoing
// packets is translated to the jail's transit address, one of a pool on this host, and on the host
// to the host's own address. Replies are translated back. All other incoming packets are dropped.
// The host's end of the link has no address.
//
//	jail: 10.0.0.2 ──snat──▶ 100.64.0.7 ═ veth ═▶ host ──masquerade──▶ outside
//
// In a Gated network the other end is in a second namespace, the gate, which has no routes and no
// forwarding, only sockets of the daemon. Every TCP connection to any address is redirected to the
// daemon's socket on ProxyPort or AllPort, every DNS query to the one on port 53, and all other
// packets are rejected.
//
//	jail: 10.0.0.2 ═ veth ═▶ gate 10.0.0.1: only the daemon's sockets
//
// In a Grouped network the other end is connected to a bridge in a namespace of the group. Members
// reach each other at their transit addresses, and the daemon as DNS server.
//
// A jail in a virtual machine has the other end of a tap in its namespace, which becomes a router
// between the tap and the link: see OpenTap. All of the above applies to the packets that it forwards.
//
// One nftables table on the host, named glasshouse, masquerades packets of jails and rejects their
// packets to the host itself, to other jails, and to link-local addresses, which include the
// metadata services of clouds. Links have no IPv6.
//
// The package keeps no state: a network is found by its name and its path. Paths and links are
// those of the process's own namespaces.
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

// Pool is the default of Options.Pool: a part of the shared address space of providers (RFC
// 6598), which neither the Internet nor private networks should use.
var Pool = netip.MustParsePrefix("100.64.0.0/16")

// Options describe a network. Path must be set.
type Options struct {
	Path string // path at which the namespace is bound; this package creates the file

	Reach  Reach
	Group  string       // for Grouped: path at which the group's namespace is bound
	Direct bool         // for gVisor, which moves the address to its own network stack: eth0 has the transit address itself
	Tap    bool         // the jail is in a virtual machine, behind a tap of OpenTap
	Index  int          // index of the jail's address in the pool; must be unique
	Pool   netip.Prefix // zero means Pool

	// Await makes the namespace wait for the link of the given name from Pull and Plug, which
	// another namespace still has. Until then the namespace has a placeholder link.
	Await bool

	// At is the path of the network that owns the link, if that is another one. Default: Path.
	At string
}

// at returns the path after which resources of the link are named.
func (o Options) at() string { return cmp.Or(o.At, o.Path) }

// Reach selects what a network can reach.
type Reach int

const (
	Alone   Reach = iota // only loopback
	Gated                // a gate, in which only the daemon listens
	Grouped              // other members of the group
	Full                 // external networks through the host
)

// Transit returns a jail's address in a pool. An invalid pool selects Pool.
func Transit(pool netip.Prefix, index int) (netip.Addr, error) {
	if !pool.IsValid() {
		pool = Pool
	}
	// The first address of the pool is that of the network, and the last one that of
	// broadcasts.
	if !pool.Addr().Is4() || index < 0 || index >= 1<<(32-pool.Bits())-2 {
		return netip.Addr{}, fault.Newf(fault.Exhausted, "netns.Create", pool.String(), "no address %d in the pool", index)
	}
	a := pool.Masked().Addr().As4()
	n := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3])
	n += uint32(index) + 1
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}), nil
}

// A Net is a jail's network. It holds no open resources and need not be closed.
type Net struct {
	Name          string
	Path          string
	Link          string     // the host's end of the link, or ""
	Transit       netip.Addr // for Full and Grouped
	EndpointNetns string     // for Gated and Grouped: the namespace in which the daemon listens, at Gateway

	at  string // path after which resources of the link are named
	tap bool   // Options.Tap
}

// Create creates the network of the given name. It returns fault.Conflict if a name, path or
// transit address is in use. If Create fails it removes what it created.
func Create(ctx context.Context, name string, o Options) (_ *Net, err error) {
	if name == "" || o.Path == "" {
		return nil, fault.Newf(fault.Invalid, "netns.Create", name, "a network needs a name and a path")
	}
	n, err := o.net(name)
	if err != nil {
		return nil, err
	}
	if err := bind(o.Path); err != nil {
		return nil, fmt.Errorf("create network %s: %w", name, err)
	}
	if err = context.Cause(ctx); err == nil {
		err = n.wire(o)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create network %s: %w", name, err), unbind(o.Path))
	}
	return n, nil
}

// net returns the Net for these options.
func (o Options) net(name string) (n *Net, err error) {
	n = &Net{Name: name, Path: o.Path, at: o.at(), tap: o.Tap}
	if o.Reach == Full || o.Reach == Grouped {
		n.Transit, err = Transit(o.Pool, o.Index)
	}
	return n, err
}

// wire connects the network according to its reach. If it fails it removes what it created.
func (n *Net) wire(o Options) error {
	if o.Await && o.Reach != Alone {
		return n.standIn(o)
	}
	switch o.Reach {
	case Gated:
		n.EndpointNetns = gatePath(n.at)
		return n.connectGate()
	case Grouped:
		n.EndpointNetns = o.Group
		return n.join(o)
	case Full:
		n.Link = linkName(n.Name)
		return n.connect(o.Direct)
	}
	return nil
}

// Clean removes the network of the given name and path, even if it is incomplete. The kernel
// frees the namespace with its last process, and a gate with its last socket.
func Clean(name, path string) error {
	return errors.Join(disconnect(name), leave(name, path), unbind(gatePath(path)), unbind(path))
}

// CleanInner removes the namespace bound to path. It keeps the link, which belongs to another
// namespace now.
func CleanInner(path string) error { return unbind(path) }

// bind creates a network namespace with loopback up and binds it to path.
func bind(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the directory of the namespace: %w", err)
	}
	if bound(path) {
		return fault.Newf(fault.Conflict, "netns.Create", path, "network already exists")
	}
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|unix.O_CLOEXEC, 0o444)
	if err != nil {
		return fmt.Errorf("make the mount point of the namespace: %w", err)
	}
	f.Close()
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := loopback(); err != nil {
			return err
		}
		// The bind mount keeps the namespace alive without a process (namespaces(7)).
		// /proc/self would be the main thread, which is in another one.
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

// unbind undoes bind, even if bind was interrupted.
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

// loopback configures the namespace of this thread. It sets loopback up. Root in the jail has
// no capabilities in this namespace, so it allows all users to listen on any port and to ping.
// It disables multipath TCP, which Go's servers request first, because CRIU cannot checkpoint
// its sockets. Programs then fall back to TCP.
func loopback() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring up the loopback interface: %w", err)
	}
	return errors.Join(
		sysctl("net/ipv4/ip_unprivileged_port_start", "0"),
		sysctl("net/ipv4/ping_group_range", "0 2147483647"),
		optional(sysctl("net/mptcp/enabled", "0")),
	)
}

// optional returns err, or nil if err means that the kernel lacks the setting.
func optional(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// sysctl writes a sysctl of the thread's network namespace.
func sysctl(name, value string) error {
	if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0); err != nil {
		return fmt.Errorf("set %s: %w", strings.ReplaceAll(name, "/", "."), err)
	}
	return nil
}

// Do runs f in the network namespace bound to path, on a locked thread. Sockets that f opens
// belong to that namespace. Other goroutines that f starts run outside of it.
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

// onThread runs f on a thread that f may move to another network namespace. The thread is
// moved back afterwards. If that fails the thread exits with its goroutine, which is still
// locked to it (runtime.LockOSThread).
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

// MountSysfs mounts a read-only sysfs on dst that shows only the links of the network
// namespace bound to path.
func MountSysfs(path, dst string) error {
	mnt := -1
	err := Do(path, func() (err error) {
		// sysfs shows the network namespace of the thread that opens it (sysfs_init_fs_context
		// in fs/sysfs/mount.c), wherever the mount is attached.
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
		if err != nil {
			return fmt.Errorf("fsmount: %w", err)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("mount sysfs of %s: %w", path, err)
	}
	defer unix.Close(mnt)
	if err := unix.MountSetattr(mnt, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Propagation: unix.MS_PRIVATE}); err != nil {
		return fmt.Errorf("make sysfs mount private: %w", err)
	}
	if err := unix.MoveMount(mnt, "", unix.AT_FDCWD, dst, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount sysfs: %w", &fs.PathError{Op: "move_mount", Path: dst, Err: err})
	}
	return nil
}

// Probe creates and removes a network without a link.
func Probe() error { return probe("netns.Probe", Options{}) }

// ProbeFull creates and removes a network with a link. It leaves the host's rules and
// forwarding enabled, like any such network.
func ProbeFull() error {
	// Use the last address of the pool, which a jail is least likely to have.
	return probe("netns.ProbeFull", Options{Reach: Full, Index: 1<<(32-Pool.Bits()) - 3})
}

func probe(op string, o Options) error {
	if os.Geteuid() != 0 {
		return fault.Cannot(op, "creating a network needs root", "run the daemon as root")
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
		return nil // a concurrent probe has succeeded
	}
	if err != nil {
		return fmt.Errorf("probe networks: %w", err)
	}
	return Clean(name, o.Path)
}
