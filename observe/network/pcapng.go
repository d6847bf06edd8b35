package network

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Packets are stored in packets.pcapng. Older files are packets-1.pcapng, the latest, to
// packets-8.pcapng.
const (
	captureBytes = 64 << 20 // approximate size of a file
	captureKeep  = 8        // number of older files
	captureName  = "packets.pcapng"
)

// A capture stores packet bytes in pcapng files.
type capture struct {
	dir    string
	limit  int64
	ifaces map[uint32]iface
	ids    map[uint32]uint32 // interface IDs of the section by interface index
	f      *os.File
	w      *bufio.Writer
	size   int64
	block  []byte
}

// openCapture continues the capture of an earlier daemon in dir.
func openCapture(dir string, ifaces map[uint32]iface) (*capture, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	c := &capture{dir: dir, limit: captureBytes, ifaces: ifaces}
	return c, c.open()
}

// open opens the current file and appends a section. A torn end is truncated to the last
// complete block.
func (c *capture) open() error {
	f, err := os.OpenFile(filepath.Join(c.dir, captureName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	complete, err := wholeBlocks(f)
	if err == nil {
		err = f.Truncate(complete)
	}
	if err == nil {
		_, err = f.Seek(complete, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return fmt.Errorf("open %s: %w", f.Name(), err)
	}
	c.f, c.w, c.size = f, bufio.NewWriterSize(f, 64<<10), complete
	c.ids = map[uint32]uint32{}
	// A new section begins with no interfaces. Those of earlier sections were not read.
	return c.section()
}

// wholeBlocks returns the end of the last complete block of a file.
func wholeBlocks(f io.ReadSeeker) (int64, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	r := bufio.NewReaderSize(f, 256<<10)
	for at := int64(0); ; {
		head, err := r.Peek(8)
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return at, err
		}
		n := binary.LittleEndian.Uint32(head[4:])
		// A block has at least a type and its length at both ends, and is padded to four bytes
		// (draft-ietf-opsawg-pcapng, 3.1).
		if n < 12 || n%4 != 0 {
			return at, nil
		}
		if _, err := r.Discard(int(n) - 4); err != nil {
			return at, nil
		}
		tail, err := r.Peek(4)
		if err != nil || binary.LittleEndian.Uint32(tail) != n {
			return at, nil
		}
		r.Discard(4)
		at += int64(n)
	}
}

// Blocks and options of pcapng, as named in draft-ietf-opsawg-pcapng.
const (
	sectionHeader   = 0x0a0d0d0a
	interfaceBlock  = 1
	enhancedPacket  = 6
	optEnd          = 0
	optComment      = 1
	optName         = 2
	optResolution   = 9
	optFlags        = 2
	optApplication  = 4
	linkEthernet    = 1
	linkBare        = 101
	flagInbound     = 1
	flagOutbound    = 2
	nanosecondUnits = 9
)

func (c *capture) begin(kind uint32) {
	c.block = binary.LittleEndian.AppendUint32(c.block[:0], kind)
	c.block = binary.LittleEndian.AppendUint32(c.block, 0)
}

func (c *capture) u16(v ...uint16) {
	for _, v := range v {
		c.block = binary.LittleEndian.AppendUint16(c.block, v)
	}
}

func (c *capture) u32(v ...uint32) {
	for _, v := range v {
		c.block = binary.LittleEndian.AppendUint32(c.block, v)
	}
}

// padded appends b, padded to a multiple of four.
func (c *capture) padded(b []byte) {
	c.block = append(c.block, b...)
	for len(c.block)%4 != 0 {
		c.block = append(c.block, 0)
	}
}

func (c *capture) option(code uint16, b []byte) {
	c.u16(code, uint16(len(b)))
	c.padded(b)
}

// end completes the block that begin started.
func (c *capture) end() error {
	n := uint32(len(c.block) + 4)
	binary.LittleEndian.PutUint32(c.block[4:], n)
	c.u32(n)
	c.size += int64(n)
	_, err := c.w.Write(c.block)
	return err
}

func (c *capture) section() error {
	c.begin(sectionHeader)
	c.u32(0x1a2b3c4d) // byte-order magic; readers detect the byte order by it
	c.u16(1, 0)
	c.u32(0xffffffff, 0xffffffff) // the section length is unknown
	c.option(optApplication, []byte("Glasshouse"))
	c.u16(optEnd, 0)
	return c.end()
}

// id returns the ID of an interface in this section.
func (c *capture) id(index uint32) (uint32, error) {
	if id, ok := c.ids[index]; ok {
		return id, nil
	}
	i := c.ifaces[index]
	link := uint16(linkEthernet)
	if i.bare {
		link = linkBare
	}
	c.begin(interfaceBlock)
	c.u16(link, 0)
	c.u32(0) // no snapshot length limit; each packet has its captured length
	c.option(optName, []byte(i.name))
	c.option(optResolution, []byte{nanosecondUnits})
	c.u16(optEnd, 0)
	id := uint32(len(c.ids))
	c.ids[index] = id
	return id, c.end()
}

// packet writes a packet of length bytes that begins with frame. ts is in nanoseconds since
// the Unix epoch.
func (c *capture) packet(index uint32, ts int64, frame []byte, length uint32, inbound bool, comment string) error {
	if c.size > c.limit {
		if err := c.rotate(); err != nil {
			return err
		}
	}
	id, err := c.id(index)
	if err != nil {
		return err
	}
	c.begin(enhancedPacket)
	c.u32(id, uint32(uint64(ts)>>32), uint32(ts), uint32(len(frame)), length)
	c.padded(frame)
	c.u16(optFlags, 4)
	if inbound {
		c.u32(flagInbound)
	} else {
		c.u32(flagOutbound)
	}
	if comment != "" {
		c.option(optComment, []byte(comment))
	}
	c.u16(optEnd, 0)
	return c.end()
}

// rotate starts a new file.
func (c *capture) rotate() error {
	if err := c.close(); err != nil {
		return err
	}
	name := func(n int) string {
		if n == 0 {
			return filepath.Join(c.dir, captureName)
		}
		return filepath.Join(c.dir, fmt.Sprintf("packets-%d.pcapng", n))
	}
	// From the oldest file to the newest, because rename(2) replaces an existing file: only the
	// oldest one is lost.
	for n := captureKeep - 1; n >= 0; n-- {
		if err := os.Rename(name(n), name(n+1)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return c.open()
}

func (c *capture) flush() error { return c.w.Flush() }

func (c *capture) close() error { return errors.Join(c.w.Flush(), c.f.Close()) }
