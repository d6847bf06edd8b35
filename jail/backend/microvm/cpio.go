package microvm

import (
	"bufio"
	"fmt"
	"io"
)

// A cpioWriter writes the archive of an initial file system, in the format newc of the kernel's
// Documentation/driver-api/early-userspace/buffer-format.rst.
type cpioWriter struct {
	w     *bufio.Writer
	inode int
	err   error
}

func newCpioWriter(w io.Writer) *cpioWriter { return &cpioWriter{w: bufio.NewWriter(w)} }

// File types and modes of archive entries.
const (
	cpioDir     = 0o040755
	cpioProgram = 0o100755
)

// add adds an entry of root with a size and, unless the size is 0, content.
func (c *cpioWriter) add(name string, mode uint32, size int64, content io.Reader) {
	if c.err != nil {
		return
	}
	c.inode++
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		c.inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0, name)
	c.write(int64(len(header)), func() error { _, err := c.w.WriteString(header); return err })
	if size > 0 {
		c.write(size, func() error { _, err := io.CopyN(c.w, content, size); return err })
	}
}

// write calls f, which writes n bytes, and pads them.
func (c *cpioWriter) write(n int64, f func() error) {
	if c.err == nil {
		c.err = f()
	}
	for ; n%4 != 0 && c.err == nil; n++ {
		c.err = c.w.WriteByte(0)
	}
}

// close ends the archive.
func (c *cpioWriter) close() error {
	c.add("TRAILER!!!", 0, 0, nil)
	if c.err != nil {
		return c.err
	}
	return c.w.Flush()
}
