package wasi

import (
	"crypto/rand"
	"encoding/binary"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/tetratelabs/wazero/sys"
)

func argsSizesGet(c *call) errno    { return c.sizes(c.p.args) }
func argsGet(c *call) errno         { return c.strings(c.p.args) }
func environSizesGet(c *call) errno { return c.sizes(c.p.env) }
func environGet(c *call) errno      { return c.strings(c.p.env) }

// sizes returns the number of strings, and their size including the terminating zero bytes.
func (c *call) sizes(all []string) errno {
	size := len(all)
	for _, s := range all {
		size += len(s)
	}
	if n := c.put32(c.u32(0), uint32(len(all))); n != eOK {
		return n
	}
	return c.put32(c.u32(1), uint32(size))
}

// strings writes the zero-terminated strings and an array of their addresses.
func (c *call) strings(all []string) errno {
	pointers, at := c.u32(0), c.u32(1)
	for i, s := range all {
		if n := c.put32(pointers+4*uint32(i), at); n != eOK {
			return n
		}
		b, ok := c.memory(at, uint32(len(s)+1))
		if !ok {
			return eFault
		}
		b[copy(b, s)] = 0
		at += uint32(len(b))
	}
	return eOK
}

// clock returns the clock of the host for a WASI clock id. CPU-time clocks are not supported:
// they would measure the host's process and not the module.
func clock(number uint32) (int32, errno) {
	switch number {
	case 0:
		return unix.CLOCK_REALTIME, eOK
	case 1:
		return unix.CLOCK_MONOTONIC, eOK
	case 2, 3:
		return 0, eNotsup
	}
	return 0, eInval
}

func clockResGet(c *call) errno {
	return c.time(unix.ClockGetres, 1)
}

func clockTimeGet(c *call) errno {
	return c.time(unix.ClockGettime, 2)
}

// time reads a clock with ask and writes the time to the address in argument result.
func (c *call) time(ask func(clockid int32, t *unix.Timespec) error, result int) errno {
	id, n := clock(c.u32(0))
	if n != eOK {
		return n
	}
	var t unix.Timespec
	if err := ask(id, &t); err != nil {
		return number(err)
	}
	return c.put64(c.u32(result), uint64(t.Nano()))
}

func randomGet(c *call) errno {
	b, ok := c.memory(c.u32(0), c.u32(1))
	if !ok {
		return eFault
	}
	rand.Read(b)
	return eOK
}

func schedYield(*call) errno {
	runtime.Gosched()
	return eOK
}

// procExit ends the module. It does not return.
func procExit(c *call) errno {
	c.p.exited, c.p.code = true, c.u32(0)
	_ = c.mod.CloseWithExitCode(c.ctx, c.p.code)
	panic(sys.NewExitError(c.p.code))
}

// procRaise is not supported: a signal would affect the host's process.
func procRaise(*call) errno { return eNotsup }

// sockAny implements all socket functions. A module has no sockets.
func sockAny(c *call) errno {
	if _, n := c.file(0); n != eOK {
		return n
	}
	return eNotsock
}

// fields is a structure in the module's memory, with the field offsets of the C ABI.
type fields []byte

func (f fields) u8(at int, v uint8)   { f[at] = v }
func (f fields) u16(at int, v uint16) { binary.LittleEndian.PutUint16(f[at:], v) }
func (f fields) u32(at int, v uint32) { binary.LittleEndian.PutUint32(f[at:], v) }
func (f fields) u64(at int, v uint64) { binary.LittleEndian.PutUint64(f[at:], v) }
