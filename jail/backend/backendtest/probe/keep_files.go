package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func ptrOf(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }

// keepFiles tests open files: their offsets and flags.
func keepFiles([]string) (func(bool) error, error) {
	dir := keepDir + "/files.d"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(dir+"/read", []byte("0123456789"), 0o644); err != nil {
		return nil, err
	}
	read, err := os.Open(dir + "/read")
	if err != nil {
		return nil, err
	}
	if _, err := read.Seek(4, io.SeekStart); err != nil {
		return nil, err
	}
	shared, err := unix.Dup(int(read.Fd())) // shares the file offset
	if err != nil {
		return nil, err
	}
	add, err := os.OpenFile(dir+"/add", os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if _, err := add.WriteString("one"); err != nil {
		return nil, err
	}
	lower, err := os.Open("/etc/issue")
	if err != nil {
		return nil, err
	}
	renamed, err := os.OpenFile(dir+"/before", os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := os.Rename(dir+"/before", dir+"/after"); err != nil {
		return nil, err
	}
	names, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	status, err := os.Open("/proc/self/status")
	if err != nil {
		return nil, err
	}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	flags, err := unix.FcntlInt(add.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return nil, err
	}
	return func(bool) error {
		b := make([]byte, 3)
		_, readErr := read.Read(b)
		at, seekErr := unix.Seek(shared, 0, io.SeekCurrent)
		_, addErr := add.WriteString("two")
		added, openErr := os.ReadFile(dir + "/add")
		issue, lowerErr := io.ReadAll(lower)
		_, renameErr := renamed.WriteString("x")
		after, afterErr := os.ReadFile(dir + "/after")
		found, dirErr := names.Readdirnames(-1)
		text, procErr := io.ReadAll(status)
		_, nullErr := null.WriteString("x")
		now, flagErr := unix.FcntlInt(add.Fd(), unix.F_GETFL, 0)
		return errors.Join(readErr, seekErr, addErr, openErr, lowerErr, renameErr, afterErr, dirErr, procErr, nullErr, flagErr,
			want("what is read next", string(b), "456"),
			want("the position of its duplicate", at, 7),
			want("what was appended", string(added), "onetwo"),
			want("a file of the lower layer", string(issue), "a small tree for tests\n"),
			want("a renamed file", string(after), "x"),
			want("the names in an open directory", len(found), 3),
			want("an open file of /proc", strings.HasPrefix(string(text), "Name:\t"), true),
			want("a file's flags", now, flags),
		)
	}, nil
}

// keepDeleted tests open files that were deleted.
func keepDeleted([]string) (func(bool) error, error) {
	var held []*os.File
	for _, dir := range []string{keepDir, "/dev/shm"} {
		name := dir + "/deleted"
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o640)
		if err != nil {
			return nil, err
		}
		if _, err := f.WriteString("still here " + dir); err != nil {
			return nil, err
		}
		if err := os.Remove(name); err != nil {
			return nil, err
		}
		fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open a file without a name in %s: %w", dir, err)
		}
		tmp := os.NewFile(uintptr(fd), "nameless")
		if _, err := tmp.WriteString("still here " + dir); err != nil {
			return nil, err
		}
		held = append(held, f, tmp)
	}
	// Another name of the file remains.
	linked, err := os.OpenFile(keepDir+"/link-a", os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, err
	}
	if _, err := linked.WriteString("two names"); err != nil {
		return nil, err
	}
	if err := errors.Join(os.Link(keepDir+"/link-a", keepDir+"/link-b"), os.Remove(keepDir+"/link-a")); err != nil {
		return nil, err
	}
	return func(bool) error {
		var errs []error
		for i, f := range held {
			b := make([]byte, 64)
			n, err := f.ReadAt(b, 0)
			if err != io.EOF {
				errs = append(errs, err)
			}
			dir := []string{keepDir, keepDir, "/dev/shm", "/dev/shm"}[i]
			var st unix.Stat_t
			errs = append(errs, want("a file without a name", string(b[:n]), "still here "+dir), unix.Fstat(int(f.Fd()), &st))
			errs = append(errs, want("the number of its names", int(st.Nlink), 0))
		}
		if _, err := linked.WriteAt([]byte("TWO"), 0); err != nil {
			errs = append(errs, err)
		}
		b, err := os.ReadFile(keepDir + "/link-b")
		errs = append(errs, err, want("a file's other name", string(b), "TWO names"))
		for _, dir := range []string{keepDir, "/dev/shm"} {
			_, err := os.Lstat(dir + "/deleted")
			errs = append(errs, want("the deleted name", os.IsNotExist(err), true))
		}
		return errors.Join(errs...)
	}, nil
}

// keepLocks tests three kinds of file locks.
func keepLocks([]string) (func(bool) error, error) {
	var held []*os.File
	for _, kind := range []string{"flock", "posix", "ofd"} {
		f, err := os.OpenFile(keepDir+"/lock-"+kind, os.O_RDWR|os.O_CREATE, 0o666)
		if err != nil {
			return nil, err
		}
		if err := lock(kind, f); err != nil {
			return nil, err
		}
		held = append(held, f)
	}
	return func(bool) error {
		defer func() { held = nil }()
		var errs []error
		for _, kind := range []string{"flock", "posix", "ofd"} {
			c, err := startPart(nil, "lock", kind)
			if err != nil {
				return err
			}
			if err := c.Wait(); err != nil {
				errs = append(errs, fmt.Errorf("lock by %s: %w", kind, err))
			}
		}
		return errors.Join(errs...)
	}, nil
}

func lock(kind string, f *os.File) error {
	l := unix.Flock_t{Type: unix.F_WRLCK, Len: 10}
	switch kind {
	case "flock":
		return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	case "posix":
		return unix.FcntlFlock(f.Fd(), unix.F_SETLK, &l)
	}
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l)
}

// partLock fails if it acquires the lock.
func partLock(args []string) error {
	f, err := os.OpenFile(keepDir+"/lock-"+args[0], os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := lock(args[0], f); err != unix.EAGAIN && err != unix.EACCES {
		return fmt.Errorf("another process acquired the lock: %v", err)
	}
	return nil
}

// keepFIFO tests a named pipe with data in it.
func keepFIFO([]string) (func(bool) error, error) {
	if err := unix.Mkfifo(keepDir+"/fifo", 0o600); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(keepDir+"/fifo", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	if _, err := f.WriteString("in the pipe"); err != nil {
		return nil, err
	}
	return func(bool) error {
		b := make([]byte, 64)
		n, err := f.Read(b)
		return errors.Join(err, want("what was in the pipe", string(b[:n]), "in the pipe"))
	}, nil
}

// keepInotify tests an inotify watch.
func keepInotify([]string) (func(bool) error, error) {
	dir := keepDir + "/watched"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	fd, err := unix.InotifyInit1(0)
	if err != nil {
		return nil, err
	}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE); err != nil {
		return nil, err
	}
	return func(bool) error {
		if err := os.WriteFile(dir+"/new", nil, 0o644); err != nil {
			return err
		}
		return within(10*time.Second, "an event", func() error {
			b := make([]byte, 4096)
			n, err := unix.Read(fd, b)
			return errors.Join(err, want("the event's name", strings.TrimRight(string(b[16:max(n, 16)]), "\x00"), "new"))
		})
	}, nil
}

// keepEpoll tests epoll, signalfd and similar descriptors.
func keepEpoll([]string) (func(bool) error, error) {
	ep, err := unix.EpollCreate1(0)
	if err != nil {
		return nil, err
	}
	ev, err := unix.Eventfd(5, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, ev, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(ev), Pad: 42}); err != nil {
		return nil, err
	}
	timer, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, 0)
	if err != nil {
		return nil, err
	}
	tick := unix.NsecToTimespec(int64(50 * time.Millisecond))
	if err := unix.TimerfdSettime(timer, 0, &unix.ItimerSpec{Interval: tick, Value: tick}, nil); err != nil {
		return nil, err
	}
	set := unix.Sigset_t{}
	set.Val[0] = 1 << (unix.SIGWINCH - 1)
	sig, err := unix.Signalfd(-1, &set, unix.SFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	return func(bool) error {
		events := make([]unix.EpollEvent, 4)
		n, err := unix.EpollWait(ep, events, 10000)
		if err != nil || n != 1 {
			return fmt.Errorf("read %d bytes of events: %w", n, err)
		}
		b := make([]byte, 8)
		_, evErr := unix.Read(ev, b)
		info, sigErr := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", sig))
		timerErr := within(10*time.Second, "a tick", func() error {
			_, err := unix.Read(timer, make([]byte, 8))
			return err
		})
		return errors.Join(evErr, timerErr, sigErr,
			want("what the event says", events[0].Pad, 42),
			want("the number in it", b[0], 5),
			want("the signals of a descriptor", strings.Contains(string(info), "sigmask:\t0000000008000000"), true),
		)
	}, nil
}

// keepTimers tests three kinds of running timers.
func keepTimers([]string) (func(bool) error, error) {
	c := exec.Command("timeout", "1", "sleep", "300") // timer_create
	if err := c.Start(); err != nil {
		return nil, err
	}
	goTimer := time.After(1500 * time.Millisecond)
	at := unix.Itimerval{Value: unix.NsecToTimeval(int64(time.Hour))}
	if _, err := unix.Setitimer(unix.ITIMER_REAL, at); err != nil {
		return nil, err
	}
	return func(bool) error {
		left, err := unix.Getitimer(unix.ITIMER_REAL)
		if err != nil || left.Value.Sec < 3000 || left.Value.Sec > 3600 {
			return fmt.Errorf("the timer of an hour has %d s left: %w", left.Value.Sec, err)
		}
		return within(30*time.Second, "the end of the timers", func() error {
			<-goTimer
			c.Wait()
			return want("the code of timeout", c.ProcessState.ExitCode(), 124)
		})
	}, nil
}
