package wasi

import (
	"encoding/binary"
	"errors"
	stdio "io"

	"golang.org/x/sys/unix"
)

// Flags of descriptors.
const (
	flagAppend   = 1 << 0
	flagDsync    = 1 << 1
	flagNonblock = 1 << 2
	flagRsync    = 1 << 3
	flagSync     = 1 << 4
)

// regularFile returns the file of argument 0. It returns an errno for a directory or a stream.
func (c *call) regularFile() (*file, errno) {
	f, n := c.file(0)
	switch {
	case n != eOK:
		return nil, n
	case f.kind == directory:
		return nil, eIsdir
	case f.stream():
		return nil, eSpipe
	}
	return f, eOK
}

func fdAdvise(c *call) errno {
	f, n := c.regularFile()
	if n != eOK {
		return n
	}
	// The numbers are those of Linux, except that SEQUENTIAL and RANDOM are swapped.
	advice := c.u32(3)
	linux := []int{unix.FADV_NORMAL, unix.FADV_SEQUENTIAL, unix.FADV_RANDOM, unix.FADV_WILLNEED, unix.FADV_DONTNEED, unix.FADV_NOREUSE}
	if int64(advice) >= int64(len(linux)) {
		return eInval
	}
	return number(unix.Fadvise(f.fd, int64(c.u64(1)), int64(c.u64(2)), linux[advice]))
}

func fdAllocate(c *call) errno {
	f, n := c.regularFile()
	if n != eOK {
		return n
	}
	offset, length := int64(c.u64(1)), int64(c.u64(2))
	switch {
	case !f.write:
		return eBadf
	case offset < 0 || length <= 0 || offset+length < 0:
		return eInval
	}
	return c.change(f, func(int64) int64 { return offset + length }, func() (int, error) {
		return 0, unix.Fallocate(f.fd, 0, offset, length)
	})
}

// change calls do, which may change the length of a file, and charges the change to the
// volume of the file, if any. See Volume.grown for end.
func (c *call) change(f *file, end func(size int64) int64, do func() (int, error)) errno {
	_, err := c.counted(f, end, do)
	return c.answer(err)
}

func (c *call) counted(f *file, end func(size int64) int64, do func() (int, error)) (int, error) {
	if f.volume == nil {
		return do()
	}
	return f.volume.grown(f, end, do)
}

// writes calls do, which writes to a file, and adds the bytes to Process.Written.
func (c *call) writes(f *file, end func(size int64) int64, do func() (int, error)) (int, error) {
	n, err := c.counted(f, end, do)
	c.p.written += int64(max(n, 0))
	return n, err
}

func fdClose(c *call) errno {
	f, n := c.p.look(c.u32(0))
	if n != eOK {
		return n
	}
	c.p.files[c.u32(0)] = nil
	return number(f.close())
}

func fdDatasync(c *call) errno { return c.sync(unix.Fdatasync) }
func fdSync(c *call) errno     { return c.sync(unix.Fsync) }

func (c *call) sync(do func(fd int) error) errno {
	f, n := c.file(0)
	switch {
	case n != eOK:
		return n
	case f.stream():
		return eInval
	}
	return number(do(f.fd))
}

func fdFdstatGet(c *call) errno {
	f, n := c.p.look(c.u32(0))
	if n != eOK {
		return n
	}
	b, ok := c.memory(c.u32(1), 24)
	if !ok {
		return eFault
	}
	clear(b)
	base, inheriting := f.rights()
	fields(b).u8(0, f.kind)
	fields(b).u16(2, f.flags)
	fields(b).u64(8, base)
	fields(b).u64(16, inheriting)
	return eOK
}

func fdFdstatSetFlags(c *call) errno {
	f, n := c.file(0)
	if n != eOK {
		return n
	}
	const fixed = flagDsync | flagRsync | flagSync
	flags := uint16(c.u32(1))
	switch {
	case c.u32(1) > 31:
		return eInval
	case flags&fixed != f.flags&fixed:
		return eNotsup // Linux does not change these flags either (fcntl(2), F_SETFL)
	}
	f.flags = flags
	return eOK
}

// linuxFlags returns the open flags of Linux for the flags of a descriptor, without O_APPEND:
// with O_APPEND, Linux also appends the data of pwrite (pwrite(2), BUGS). fdWrite implements
// appending.
func linuxFlags(flags uint16) int {
	linux := 0
	for _, f := range []struct {
		flag  uint16
		linux int
	}{{flagDsync, unix.O_DSYNC}, {flagRsync, unix.O_RSYNC}, {flagSync, unix.O_SYNC}} {
		if flags&f.flag != 0 {
			linux |= f.linux
		}
	}
	return linux
}

// fdFdstatSetRights is not supported, as in other implementations of preview 1.
func fdFdstatSetRights(c *call) errno {
	if _, n := c.p.look(c.u32(0)); n != eOK {
		return n
	}
	return eNotsup
}

func fdFilestatGet(c *call) errno {
	f, n := c.file(0)
	if n != eOK {
		return n
	}
	if f.stream() {
		// The module does not learn the inode of the host's file.
		return c.putFilestat(c.u32(1), &unix.Stat_t{}, f.kind)
	}
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return number(err)
	}
	return c.putFilestat(c.u32(1), &st, kindOf(st.Mode))
}

func (c *call) putFilestat(at uint32, st *unix.Stat_t, kind uint8) errno {
	b, ok := c.memory(at, 64)
	if !ok {
		return eFault
	}
	clear(b)
	fields(b).u64(0, st.Dev)
	fields(b).u64(8, st.Ino)
	fields(b).u8(16, kind)
	fields(b).u64(24, uint64(st.Nlink)) // 32 bits on arm64
	fields(b).u64(32, uint64(st.Size))
	fields(b).u64(40, uint64(st.Atim.Nano()))
	fields(b).u64(48, uint64(st.Mtim.Nano()))
	fields(b).u64(56, uint64(st.Ctim.Nano()))
	return eOK
}

func fdFilestatSetSize(c *call) errno {
	f, n := c.regularFile()
	if n != eOK {
		return n
	}
	size := int64(c.u64(1))
	if !f.write || size < 0 {
		return eInval
	}
	return c.change(f, func(int64) int64 { return size }, func() (int, error) { return 0, unix.Ftruncate(f.fd, size) })
}

func fdFilestatSetTimes(c *call) errno {
	f, n := c.file(0)
	switch {
	case n != eOK:
		return n
	case f.stream():
		return eInval
	case f.readOnly:
		return eRofs
	}
	times, n := timesOf(c.u64(1), c.u64(2), c.u32(3))
	if n != eOK {
		return n
	}
	return number(unix.UtimesNanoAt(f.fd, "", times, unix.AT_EMPTY_PATH))
}

// timesOf returns the times to set for fstflags: the given time, now, or UTIME_OMIT.
func timesOf(atim, mtim uint64, flags uint32) ([]unix.Timespec, errno) {
	const given, now = 1, 2
	if flags > 15 || flags&3 == given|now || flags>>2 == given|now {
		return nil, eInval
	}
	one := func(t uint64, flags uint32) unix.Timespec {
		switch {
		case flags&given != 0:
			return unix.NsecToTimespec(int64(t))
		case flags&now != 0:
			return unix.Timespec{Nsec: unix.UTIME_NOW}
		}
		return unix.Timespec{Nsec: unix.UTIME_OMIT}
	}
	return []unix.Timespec{one(atim, flags&3), one(mtim, flags>>2)}, eOK
}

func fdPrestatGet(c *call) errno {
	f, n := c.p.look(c.u32(0))
	if n != eOK {
		return n
	}
	if !f.preopened {
		return eBadf
	}
	b, ok := c.memory(c.u32(1), 8)
	if !ok {
		return eFault
	}
	clear(b)
	fields(b).u32(4, uint32(len(f.guest)))
	return eOK
}

func fdPrestatDirName(c *call) errno {
	f, n := c.p.look(c.u32(0))
	switch {
	case n != eOK:
		return n
	case !f.preopened:
		return eBadf
	case int64(c.u32(2)) < int64(len(f.guest)):
		return eNametoolong
	}
	b, ok := c.memory(c.u32(1), uint32(len(f.guest)))
	if !ok {
		return eFault
	}
	copy(b, f.guest)
	return eOK
}

// transfer calls do with the buffers in arguments 1 and 2, and writes the number of bytes to
// the address in argument result.
func (c *call) transfer(f *file, result int, do func(bufs [][]byte) (int, error)) errno {
	bufs, n := c.buffers(c.u32(1), c.u32(2))
	if n != eOK {
		return n
	}
	done := 0
	if len(bufs) > 0 || f.stream() {
		var err error
		if done, err = do(bufs); err != nil && done <= 0 {
			return c.answer(err)
		}
	}
	return c.put32(c.u32(result), uint32(done))
}

// readable and writable return the file of argument 0, or an errno if it is a directory or was
// not opened for reading or writing.
func (c *call) readable() (*file, errno) {
	f, n := c.file(0)
	switch {
	case n != eOK:
		return nil, n
	case f.kind == directory:
		return nil, eIsdir
	case !f.read:
		return nil, eBadf
	}
	return f, eOK
}

func (c *call) writable() (*file, errno) {
	f, n := c.file(0)
	switch {
	case n != eOK:
		return nil, n
	case f.kind == directory:
		return nil, eIsdir
	case !f.write:
		return nil, eBadf
	}
	return f, eOK
}

func fdRead(c *call) errno {
	f, n := c.readable()
	if n != eOK {
		return n
	}
	return c.transfer(f, 3, func(bufs [][]byte) (int, error) {
		if f.stream() {
			return c.readStream(f, bufs)
		}
		return unix.Readv(f.fd, bufs)
	})
}

// readStream makes one read. It polls a stream of the host before, because a poll ends with
// the context and a blocking read does not.
func (c *call) readStream(f *file, bufs [][]byte) (int, error) {
	if len(bufs) == 0 {
		return 0, nil
	}
	if f.fd >= 0 {
		wait := forever
		if f.flags&flagNonblock != 0 {
			wait = 0
		}
		if ready, err := ready(c.ctx, []int{f.fd}, unix.POLLIN, wait); err != nil {
			return 0, err
		} else if len(ready) == 0 {
			return 0, unix.EAGAIN
		}
	}
	n, err := f.in.Read(bufs[0])
	return n, notEOF(err)
}

func notEOF(err error) error {
	if errors.Is(err, stdio.EOF) {
		return nil
	}
	return err
}

func fdPread(c *call) errno {
	f, n := c.readable()
	switch {
	case n != eOK:
		return n
	case f.stream():
		return eSpipe
	case int64(c.u64(3)) < 0:
		return eInval
	}
	return c.transfer(f, 4, func(bufs [][]byte) (int, error) { return unix.Preadv(f.fd, bufs, int64(c.u64(3))) })
}

func fdWrite(c *call) errno {
	f, n := c.writable()
	if n != eOK {
		return n
	}
	return c.transfer(f, 3, func(bufs [][]byte) (int, error) {
		if f.stream() {
			return writeStream(f, bufs)
		}
		end := func(size int64) int64 { return f.writesFrom(size) + length(bufs) }
		return c.writes(f, end, func() (int, error) {
			if f.flags&flagAppend != 0 {
				return unix.Pwritev2(f.fd, bufs, -1, unix.RWF_APPEND)
			}
			return unix.Writev(f.fd, bufs)
		})
	})
}

func fdPwrite(c *call) errno {
	f, n := c.writable()
	switch {
	case n != eOK:
		return n
	case f.stream():
		return eSpipe
	case int64(c.u64(3)) < 0:
		return eInval
	}
	offset := int64(c.u64(3))
	return c.transfer(f, 4, func(bufs [][]byte) (int, error) {
		end := func(int64) int64 { return offset + length(bufs) }
		return c.writes(f, end, func() (int, error) { return unix.Pwritev(f.fd, bufs, offset) })
	})
}

// writesFrom returns the offset of the next write in a file of the given size.
func (f *file) writesFrom(size int64) int64 {
	if f.flags&flagAppend != 0 {
		return size
	}
	at, _ := unix.Seek(f.fd, 0, unix.SEEK_CUR)
	return at
}

func length(bufs [][]byte) (n int64) {
	for _, b := range bufs {
		n += int64(len(b))
	}
	return n
}

func writeStream(f *file, bufs [][]byte) (int, error) {
	total := 0
	for _, b := range bufs {
		n, err := f.out.Write(b)
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

func fdSeek(c *call) errno {
	whence := c.u32(2)
	if whence > 2 {
		return eInval
	}
	return c.seek(int64(c.u64(1)), int(whence), 3)
}

func fdTell(c *call) errno { return c.seek(0, unix.SEEK_CUR, 1) }

func (c *call) seek(offset int64, whence, result int) errno {
	f, n := c.regularFile()
	if n != eOK {
		return n
	}
	at, err := unix.Seek(f.fd, offset, whence)
	if err != nil {
		return number(err)
	}
	return c.put64(c.u32(result), uint64(at))
}

func fdRenumber(c *call) errno {
	from, to := c.u32(0), c.u32(1)
	f, n := c.p.file(from)
	if n != eOK {
		return n
	}
	old, n := c.p.file(to)
	if n != eOK || from == to {
		return n
	}
	c.p.files[from], c.p.files[to] = nil, f
	return number(old.close())
}

// fdReaddir writes the directory entries after a cookie until the buffer is full. The cookie
// is d_off of the kernel (getdents64(2)). The last entry may be truncated; the module then
// reads it again.
func fdReaddir(c *call) errno {
	f, n := c.file(0)
	switch {
	case n != eOK:
		return n
	case f.kind != directory:
		return eNotdir
	}
	buf, ok := c.memory(c.u32(1), c.u32(2))
	if !ok {
		return eFault
	}
	used, err := readdir(f.fd, int64(c.u64(3)), buf)
	if err != nil {
		return number(err)
	}
	return c.put32(c.u32(4), uint32(used))
}

func readdir(fd int, cookie int64, buf []byte) (used int, err error) {
	if _, err := unix.Seek(fd, cookie, unix.SEEK_SET); err != nil {
		return 0, err
	}
	entries := make([]byte, min(max(2*len(buf), 4096), 1<<16))
	for used < len(buf) {
		n, err := unix.Getdents(fd, entries)
		if n <= 0 || err != nil {
			return used, err
		}
		for left := entries[:n]; len(left) > 0 && used < len(buf); {
			// struct linux_dirent64: d_ino, d_off, d_reclen, d_type, d_name (getdents64(2)).
			size := binary.LittleEndian.Uint16(left[16:])
			name := left[19:size]
			for i, b := range name {
				if b == 0 {
					name = name[:i]
					break
				}
			}
			var entry [24]byte
			fields(entry[:]).u64(0, binary.LittleEndian.Uint64(left[8:]))
			fields(entry[:]).u64(8, binary.LittleEndian.Uint64(left))
			fields(entry[:]).u32(16, uint32(len(name)))
			fields(entry[:]).u8(20, kindOf(uint32(left[18])<<12))
			used += copy(buf[used:], entry[:])
			used += copy(buf[used:], name)
			left = left[size:]
		}
	}
	return used, nil
}
