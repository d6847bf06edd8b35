package store

import (
	"os"

	"golang.org/x/sys/unix"
)

// Disk space that SQLite's files keep ahead of their ends, so that the audit log and
// the database can be written for a while after the disk is full. The write-ahead log
// is copied into the database at 16 MB, and can grow longer while a transaction reads.
const (
	spareLog      = 24 << 20
	spareDatabase = 16 << 20

	spareEvery = 512 // commits after which space is kept again
	spareShare = 8   // of the space that is left, a file takes one such part at most
)

// spare keeps disk space for the files of a SQLite database. Filesystems that cannot,
// and those that are full, are left as they are.
func (s *Store) spare() {
	if s.file == nil {
		return
	}
	if fi, err := s.file.Stat(); err == nil {
		spare(s.file, fi.Size(), spareDatabase)
	}
	log, err := os.OpenFile(s.path+"-wal", os.O_WRONLY, 0) // SQLite's locks are on other files
	if err != nil {
		return // SQLite makes it when it writes
	}
	defer log.Close()
	spare(log, 0, spareLog)
}

// spare allocates blocks for n bytes of a file from an offset on. The file's size and
// content stay. What is allocated already takes nothing.
func spare(f *os.File, from, n int64) {
	var disk unix.Statfs_t
	var st unix.Stat_t
	if unix.Fstatfs(int(f.Fd()), &disk) != nil || unix.Fstat(int(f.Fd()), &st) != nil {
		return
	}
	n = min(n, int64(disk.Bavail)*disk.Bsize/spareShare)
	if st.Blocks*512 >= from+n {
		return
	}
	_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, from, n)
}

// committed is called after each commit.
func (s *Store) committed() {
	if s.commits.Add(1)%spareEvery == 0 {
		s.spare()
	}
}
