package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"glasshouse/policy/egress/egresstest"
)

// kernel returns attempts to change the jail's network through the kernel.
func kernel() []Attempt {
	const asked = "type:syscall name:sendto,sendmsg,socket"
	change := func(name, log string, f func() error) Attempt {
		return Attempt{Name: name, Log: log, try: func() (string, error) {
			if err := f(); err != nil {
				return "", err
			}
			return egresstest.Reached + "the kernel did it", nil
		}}
	}
	_, everything, _ := net.ParseCIDR("0.0.0.0/1")
	return []Attempt{
		change("a route past the gateway", asked, func() error {
			return onLink(func(l netlink.Link) error {
				return netlink.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: everything, Scope: netlink.SCOPE_LINK})
			})
		}),
		change("another address of its own", asked, func() error {
			return onLink(func(l netlink.Link) error {
				a, err := netlink.ParseAddr("10.0.0.1/32")
				if err != nil {
					return err
				}
				return netlink.AddrAdd(l, a)
			})
		}),
		change("another gateway by its hardware address", asked, func() error {
			return onLink(func(l netlink.Link) error {
				return netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: net.ParseIP("10.0.0.1"), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 9}, State: netlink.NUD_PERMANENT})
			})
		}),
		change("a link of its own", asked, func() error {
			a := netlink.NewLinkAttrs()
			a.Name = "own0"
			return netlink.LinkAdd(&netlink.Dummy{LinkAttrs: a})
		}),
		change("rules of a firewall", asked, func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			c.FlushRuleset()
			c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "own"})
			return c.Flush()
		}),
		change("another's network", "type:syscall name:setns ret:<0", func() error {
			runtime.LockOSThread()
			var last error = os.ErrNotExist
			spaces, _ := filepath.Glob("/proc/[0-9]*/ns/net")
			for _, path := range spaces {
				f, err := os.Open(path)
				if err != nil {
					last = err
					continue
				}
				last = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
				f.Close()
				if last == nil {
					return nil
				}
			}
			return last
		}),
		change("a network of its own", "type:syscall name:unshare ret:<0", func() error {
			runtime.LockOSThread()
			return unix.Unshare(unix.CLONE_NEWUSER | unix.CLONE_NEWNET)
		}),
		change("a process in a network of its own", "type:syscall name:clone,clone3 ret:<0", func() error {
			cmd := exec.Command("/proc/self/exe", "-list")
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET}
			return cmd.Run()
		}),
		change("settings of the network", "type:syscall name:openat ret:<0", func() error {
			var last error
			for path, value := range map[string]string{
				"ipv4/ip_forward": "1", "ipv4/ping_group_range": "0 65535", "ipv4/conf/all/route_localnet": "1",
				"ipv6/conf/all/disable_ipv6": "0", "ipv6/conf/eth0/disable_ipv6": "0", "ipv4/ip_nonlocal_bind": "1",
			} {
				last = os.WriteFile("/proc/sys/net/"+path, []byte(value), 0)
				if last == nil {
					return nil
				}
			}
			return last
		}),
	}
}

func onLink(f func(netlink.Link) error) error {
	l, err := netlink.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("find the jail's link: %w", err)
	}
	return f(l)
}
