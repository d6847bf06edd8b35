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

// sizes answers how many strings there are, and how many bytes with their ends.
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

// strings answers strings, each ended by a zero byte, and where each begins.
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

// clock is the host's clock of a number. Those of processor time tell of the host's
// process, not of the module, and are not there.
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

// time asks a clock, and answers at the place that argument result names.
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

// procExit ends the module at once.
func procExit(c *call) errno {
	c.p.exited, c.p.code = true, c.u32(0)
	_ = c.mod.CloseWithExitCode(c.ctx, c.p.code)
	panic(sys.NewExitError(c.p.code))
}

// procRaise would end the host's process.
func procRaise(*call) errno { return eNotsup }

// sockAny answers for all that is done to sockets: a module has none.
func sockAny(c *call) errno {
	if _, n := c.file(0); n != eOK {
		return n
	}
	return eNotsock
}

// fields are the bytes of a structure, whose fields are at the offsets that C gives
// them.
type fields []byte

func (f fields) u8(at int, v uint8)   { f[at] = v }
func (f fields) u16(at int, v uint16) { binary.LittleEndian.PutUint16(f[at:], v) }
func (f fields) u32(at int, v uint32) { binary.LittleEndian.PutUint32(f[at:], v) }
func (f fields) u64(at int, v uint64) { binary.LittleEndian.PutUint64(f[at:], v) }
