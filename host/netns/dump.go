package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
)

// dumpLimit bounds the pause before the last repetition of a listing: eleven attempts within
// two seconds.
const dumpLimit = time.Second

// Dump repeats a netlink listing until the kernel answers it consistently. The kernel answers a
// long listing in parts, and marks it (NLM_F_DUMP_INTR) if the listed objects changed between
// two parts: such an answer may lack objects that existed throughout.
func Dump[T any](list func() (T, error)) (T, error) {
	for pause := time.Millisecond; ; pause *= 2 {
		all, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) || pause > dumpLimit {
			return all, err
		}
		time.Sleep(pause)
	}
}

// Addresses returns all addresses of this thread's network namespace. net.InterfaceAddrs does
// the same, but ignores that a listing was interrupted.
func Addresses() ([]netip.Addr, error) {
	list, err := Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list the addresses: %w", err)
	}
	var addrs []netip.Addr
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			addrs = append(addrs, addr.Unmap())
		}
	}
	return addrs, nil
}
