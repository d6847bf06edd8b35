package syscalls_test

import (
	"encoding/hex"
	"testing"

	"glasshouse/observe/event"
	"glasshouse/observe/syscalls"
)

func TestNamesByNumber(t *testing.T) {
	for _, c := range []struct {
		abi  string
		nr   int32
		want string
	}{
		{"amd64", 0, "read"}, {"amd64", 59, "execve"}, {"amd64", 462, "mseal"}, {"amd64", 9999, "syscall_9999"}, {"amd64", -1, "syscall_-1"},
		{"arm64", 63, "read"}, {"arm64", 221, "execve"}, {"arm64", 79, "newfstatat"}, {"arm64", 56, "openat"},
		{"i386", 3, "read"}, {"i386", 11, "execve"}, {"arm", 11, "execve"},
		{syscalls.X32, syscalls.X32Bit | 1, "write"},
	} {
		if got := syscalls.Name(c.abi, c.nr); got != c.want {
			t.Errorf("Name(%q, %d) = %q, want %q", c.abi, c.nr, got, c.want)
		}
		if nr, ok := syscalls.Number(c.abi, c.want); ok && c.abi != syscalls.X32 && nr != c.nr {
			t.Errorf("Number(%q, %q) = %d, want %d", c.abi, c.want, nr, c.nr)
		}
	}
}

func TestShapesNameExistingCalls(t *testing.T) {
	for name, s := range syscalls.Shapes {
		if !syscalls.Known(name) {
			t.Errorf("no architecture has a call %q", name)
		}
		for _, arg := range []int8{s.Path, s.Dir, s.To, s.ToDir, s.FD, s.FD2, s.Addr, s.Len, s.Length, s.Rename} {
			if arg < 0 || arg > 6 {
				t.Errorf("%s has no argument %d", name, arg)
			}
		}
		if s.Op == event.OpOpen && !s.ReturnsFile {
			t.Errorf("%s opens and returns nothing", name)
		}
	}
}

func TestOperationOfRename(t *testing.T) {
	const noReplace, exchange, whiteout = 1, 2, 4
	for _, c := range []struct {
		call  string
		flags uint64
		want  string
	}{
		{"renameat2", 0, event.OpRename},
		{"renameat2", noReplace, event.OpRename},
		{"renameat2", whiteout, event.OpRename},
		{"renameat2", exchange, event.OpExchange},
		{"renameat2", 1<<32 | exchange, event.OpExchange}, // the kernel uses the lower 32 bits
		{"renameat", exchange, event.OpRename},            // the register is no argument
		{"linkat", exchange, event.OpLink},
		{"stat", exchange, ""},
	} {
		s := syscalls.Shapes[c.call]
		if got := s.Operation(&[6]uint64{0, 0, 0, 0, c.flags, 0}); got != c.want {
			t.Errorf("operation of %s with flags %#x = %q, want %q", c.call, c.flags, got, c.want)
		}
	}
}

func TestAddress(t *testing.T) {
	for in, want := range map[string]string{
		"":                                 "",
		"02":                               "",
		"0000":                             "unspec",
		"020001bb0a000002":                 "10.0.0.2:443",
		"020001bb0a0000":                   "family-2",
		"020001bb5db8d8220000000000000000": "93.184.216.34:443",
		"0a000050000000000000000000000000000000000000000100000000": "[::1]:80",
		"0a00005000000000":                     "family-10",
		"01002f72756e2f782e736f636b00ffff":     "unix:/run/x.sock",
		"0100006162730000":                     "unix:@abs",
		"0100":                                 "unix:",
		"10000000070000000000000000000000":     "netlink:7",
		"280000000a0000000200000000000000":     "vsock:2:10",
		"11000003":                             "family-17",
		"0100002f746d702f2e5831312d756e69782f": "unix:@/tmp/.X11-unix/",
	} {
		b, err := hex.DecodeString(in)
		if err != nil {
			t.Fatal(err)
		}
		if got := syscalls.Address(b); got != want {
			t.Errorf("Address(%s) = %q, want %q", in, got, want)
		}
	}
}

func FuzzAddress(f *testing.F) {
	f.Add([]byte{2, 0, 1, 187, 10, 0, 0, 2})
	f.Fuzz(func(t *testing.T, b []byte) { syscalls.Address(b) })
}
