package store

import (
	"os"

	"golang.org/x/sys/unix"
)

// Disk space that is preallocated beyond the ends of SQLite's files, so that the audit log and
// the database can be written for a while after the disk is full. The write-ahead log is
// copied into the database at 16 MB, and can grow longer while a transaction reads.
const (
	spareLog      = 24 << 20
	spareDatabase = 16 << 20

	spareEvery = 512 // commits between preallocations
	spareShare = 8   // a file takes at most this fraction of the free space
)

// spare preallocates disk space for the files of a SQLite database. It does nothing on
// filesystems that do not support it or are full.
func (s *Store) spare() {
	if s.file == nil {
		return
	}
	if fi, err := s.file.Stat(); err == nil {
		spare(s.file, fi.Size(), spareDatabase)
	}
	log, err := os.OpenFile(s.path+"-wal", os.O_WRONLY, 0) // SQLite's locks are on other files
	if err != nil {
		return // SQLite creates it with the first write
	}
	defer log.Close()
	spare(log, 0, spareLog)
}

// spare allocates n bytes of a file from an offset. The file's size and content do not change
// (fallocate(2), FALLOC_FL_KEEP_SIZE). Allocated blocks are not allocated again.
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
