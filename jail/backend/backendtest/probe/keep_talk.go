package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// partEcho echoes its input line by line.
func partEcho([]string) error {
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil
		}
		fmt.Print("echo ", line)
	}
}

// keepPipe tests two processes that communicate through pipes, with unread data.
func keepPipe([]string) (func(bool) error, error) {
	var in io.WriteCloser
	var out io.ReadCloser
	c, err := startPart(func(c *exec.Cmd) { in, _ = c.StdinPipe(); out, _ = c.StdoutPipe() }, "echo")
	if err != nil {
		return nil, err
	}
	if _, err := io.WriteString(in, "before\n"); err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	full := strings.Repeat("x", 40000)
	if _, err := w.WriteString(full); err != nil {
		return nil, err
	}
	return func(bool) error {
		lines := bufio.NewReader(out)
		heard, err := lines.ReadString('\n')
		if err := errors.Join(err, want("the first answer", heard, "echo before\n")); err != nil {
			return err
		}
		if _, err := io.WriteString(in, "after\n"); err != nil {
			return err
		}
		heard, err = lines.ReadString('\n')
		if err := errors.Join(err, want("the second", heard, "echo after\n")); err != nil {
			return err
		}
		b := make([]byte, len(full))
		if _, err := io.ReadFull(r, b); err != nil || string(b) != full {
			return fmt.Errorf("data in a pipe is lost: %w", err)
		}
		in.Close()
		return c.Wait()
	}, nil
}

// keepUnix tests socketpairs of each kind, within a process and with another one.
func keepUnix([]string) (func(bool) error, error) {
	pairs := map[int][2]int{}
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_SEQPACKET} {
		pair, err := unix.Socketpair(unix.AF_UNIX, kind, 0)
		if err != nil {
			return nil, err
		}
		if _, err := unix.Write(pair[0], []byte("queued")); err != nil {
			return nil, err
		}
		pairs[kind] = pair
	}
	return func(bool) error {
		for kind, pair := range pairs {
			b := make([]byte, 64)
			n, err := unix.Read(pair[1], b)
			if err := errors.Join(err, want(fmt.Sprintf("what waits in a pair of kind %d", kind), string(b[:max(n, 0)]), "queued")); err != nil {
				return err
			}
			if _, err := unix.Write(pair[1], []byte("back")); err != nil {
				return err
			}
			n, err = unix.Read(pair[0], b)
			if err := errors.Join(err, want("the answer", string(b[:max(n, 0)]), "back")); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// keepUnixPaths tests Unix sockets with names: in the file system, in /dev/shm, abstract.
func keepUnixPaths([]string) (func(bool) error, error) {
	type end struct {
		at     string
		l      net.Listener
		client net.Conn
		server net.Conn
	}
	var ends []end
	for _, at := range []string{keepDir + "/named.sock", "/dev/shm/named.sock", "@abstract"} {
		l, err := net.Listen("unix", at)
		if err != nil {
			return nil, err
		}
		client, err := net.Dial("unix", at)
		if err != nil {
			return nil, err
		}
		server, err := l.Accept()
		if err != nil {
			return nil, err
		}
		if _, err := io.WriteString(client, "hello\n"); err != nil {
			return nil, err
		}
		ends = append(ends, end{at, l, client, server})
	}
	return func(bool) error {
		for _, e := range ends {
			if err := converse(e.server, e.client); err != nil {
				return fmt.Errorf("%s: use the existing connection: %w", e.at, err)
			}
			if err := meet(e.l, "unix", e.at); err != nil {
				return fmt.Errorf("%s: %w", e.at, err)
			}
		}
		return nil
	}, nil
}

// In converse, one end reads the message that the other has sent and responds.
func converse(hears, speaks net.Conn) error {
	return within(10*time.Second, "a conversation", func() error {
		line, err := bufio.NewReader(hears).ReadString('\n')
		if err := errors.Join(err, want("what was said", line, "hello\n")); err != nil {
			return err
		}
		if _, err := io.WriteString(hears, "and you\n"); err != nil {
			return err
		}
		line, err = bufio.NewReader(speaks).ReadString('\n')
		return errors.Join(err, want("the answer", line, "and you\n"))
	})
}

// meet opens a new connection to a listener.
func meet(l net.Listener, network, at string) error {
	return within(10*time.Second, "a new connection", func() error {
		client, err := net.Dial(network, at)
		if err != nil {
			return err
		}
		defer client.Close()
		server, err := l.Accept()
		if err != nil {
			return err
		}
		defer server.Close()
		if _, err := io.WriteString(client, "hello\n"); err != nil {
			return err
		}
		return converse(server, client)
	})
}

// keepListener tests a listening server without connections.
func keepListener([]string) (func(bool) error, error) {
	var all []net.Listener
	for _, at := range []string{"127.0.0.1:7001", "0.0.0.0:7002", "[::]:7003"} {
		l, err := net.Listen("tcp", at)
		if err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	return func(bool) error {
		for _, l := range all {
			_, port, _ := net.SplitHostPort(l.Addr().String())
			if err := meet(l, "tcp", "127.0.0.1:"+port); err != nil {
				return fmt.Errorf("%s: %w", l.Addr(), err)
			}
		}
		return nil
	}, nil
}

// keepLoopback tests connections within the jail.
func keepLoopback([]string) (func(bool) error, error) {
	l, err := net.Listen("tcp", "127.0.0.1:7010")
	if err != nil {
		return nil, err
	}
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	server, err := l.Accept()
	if err != nil {
		return nil, err
	}
	if _, err := io.WriteString(client, "hello\n"); err != nil {
		return nil, err
	}
	// As much data as fits into a connection whose other end does not read.
	heavy, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	slow, err := l.Accept()
	if err != nil {
		return nil, err
	}
	heavy.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
	var full int
	for err == nil {
		var n int
		n, err = heavy.Write(pattern(full, 8192))
		full += n
	}
	heavy.SetWriteDeadline(time.Time{})
	return func(bool) error {
		if err := converse(server, client); err != nil {
			return err
		}
		err := within(20*time.Second, "a long message", func() error {
			got := make([]byte, full)
			if _, err := io.ReadFull(slow, got); err != nil {
				return err
			}
			if !bytes.Equal(got, pattern(0, full)) {
				return errors.New("received data differs from the sent data")
			}
			if _, err := io.WriteString(slow, "hello\n"); err != nil {
				return err
			}
			return converse(heavy, slow)
		})
		if err != nil {
			return err
		}
		return meet(l, "tcp", l.Addr().String())
	}, nil
}

// pattern returns n bytes of an endless message from an offset.
func pattern(from, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte((from + i) * 31 >> 4)
	}
	return b
}

// keepUDP tests UDP sockets.
func keepUDP([]string) (func(bool) error, error) {
	c, err := net.ListenPacket("udp", "127.0.0.1:7020")
	if err != nil {
		return nil, err
	}
	return func(bool) error {
		to, err := net.Dial("udp", "127.0.0.1:7020")
		if err != nil {
			return err
		}
		if _, err := io.WriteString(to, "datagram"); err != nil {
			return err
		}
		b := make([]byte, 64)
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		n, _, err := c.ReadFrom(b)
		return errors.Join(err, want("the datagram", string(b[:n]), "datagram"))
	}, nil
}

// keepNetlink tests a netlink socket with a pending query.
func keepNetlink([]string) (func(bool) error, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	return func(bool) error {
		req := make([]byte, 17) // RTM_GETLINK for all links
		req[0], req[4], req[6], req[7] = 17, unix.RTM_GETLINK, unix.NLM_F_REQUEST|unix.NLM_F_DUMP&0xff, unix.NLM_F_DUMP>>8
		if err := unix.Sendto(fd, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return err
		}
		return within(10*time.Second, "an answer", func() error {
			n, err := unix.Read(fd, make([]byte, 65536))
			return errors.Join(err, want("an answer", n > 16, true))
		})
	}, nil
}

// keepOutward tests a connection to a peer outside the jail: it continues in the source jail,
// and is closed in a copy.
func keepOutward(args []string) (func(bool) error, error) {
	c, err := net.DialTimeout("tcp", args[0], 10*time.Second)
	if err != nil {
		return nil, err
	}
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return nil, err
	}
	lines := bufio.NewReader(c)
	if _, err := lines.ReadString('\n'); err != nil {
		return nil, err
	}
	return func(copied bool) error {
		return within(10*time.Second, "the end of the connection", func() error {
			if !copied {
				if _, err := io.WriteString(c, "again\n"); err != nil {
					return err
				}
				line, err := lines.ReadString('\n')
				return errors.Join(err, want("the answer", line, "again\n"))
			}
			if line, err := lines.ReadString('\n'); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				return fmt.Errorf("the copy reads %q, %v from a connection of its source", line, err)
			}
			again, err := net.DialTimeout("tcp", args[0], 10*time.Second)
			if err != nil {
				return fmt.Errorf("open a new connection: %w", err)
			}
			return again.Close()
		})
	}, nil
}

// keepTerminal tests a pseudoterminal with changed settings and a process on it.
func keepTerminal([]string) (func(bool) error, error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return nil, err
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	settings, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil {
		return nil, err
	}
	settings.Lflag &^= unix.ECHO
	settings.Cc[unix.VINTR] = 5
	if err := unix.IoctlSetTermios(int(slave.Fd()), unix.TCSETS, settings); err != nil {
		return nil, err
	}
	if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 33, Col: 77}); err != nil {
		return nil, err
	}
	c, err := startPart(func(c *exec.Cmd) {
		c.Stdin, c.Stdout = slave, slave
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	}, "terminal")
	if err != nil {
		return nil, err
	}
	lines := bufio.NewReader(master)
	if line, err := lines.ReadString('\n'); err != nil || line != "ready\r\n" {
		return nil, fmt.Errorf("read %q, %v from a terminal", line, err)
	}
	return func(bool) error {
		now, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
		if err != nil {
			return err
		}
		size, err := unix.IoctlGetWinsize(int(slave.Fd()), unix.TIOCGWINSZ)
		if err != nil {
			return err
		}
		if err := errors.Join(want("the settings", *now, *settings), want("the size", *size, unix.Winsize{Row: 33, Col: 77})); err != nil {
			return err
		}
		if _, err := master.WriteString("word\n"); err != nil {
			return err
		}
		line, err := lines.ReadString('\n')
		if err := errors.Join(err, want("the answer", line, "got word\r\n")); err != nil {
			return err
		}
		if _, err := master.Write([]byte{5}); err != nil { // the VINTR character
			return err
		}
		return within(10*time.Second, "the end of who is on the terminal", func() error {
			c.Wait()
			return want("that it has ended well", c.ProcessState.Success(), false)
		})
	}, nil
}

// partTerminal echoes on its terminal until SIGINT ends it.
func partTerminal([]string) error {
	fmt.Println("ready")
	var line string
	for {
		if _, err := fmt.Scanln(&line); err != nil {
			return err
		}
		fmt.Println("got", line)
	}
}

// keepShared tests memory that two processes share, by a file in /dev/shm and anonymous.
func keepShared([]string) (func(bool) error, error) {
	f, err := os.OpenFile("/dev/shm/shared", os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(8192); err != nil {
		return nil, err
	}
	return keepMapped(f)
}

// keepMemfd tests shared memory of a memfd.
func keepMemfd([]string) (func(bool) error, error) {
	fd, err := unix.MemfdCreate("shared", 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Ftruncate(fd, 8192); err != nil {
		return nil, err
	}
	return keepMapped(os.NewFile(uintptr(fd), "memfd"))
}

func keepMapped(f *os.File) (func(bool) error, error) {
	m, err := unix.Mmap(int(f.Fd()), 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	copy(m[4096:], "held")
	c, err := startPart(func(c *exec.Cmd) { c.ExtraFiles = []*os.File{f} }, "mapped")
	if err != nil {
		return nil, err
	}
	next := func() error {
		m[0]++
		return within(10*time.Second, "the other's answer", func() error {
			for m[1] != m[0] {
				time.Sleep(time.Millisecond)
			}
			return nil
		})
	}
	if err := next(); err != nil {
		return nil, err
	}
	return func(bool) error {
		err := errors.Join(want("what was there", string(m[4096:4100]), "held"), next(), next())
		c.Process.Kill()
		c.Wait()
		return err
	}, nil
}

// partMapped responds in the memory that it shares through descriptor 3.
func partMapped([]string) error {
	m, err := unix.Mmap(3, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	for {
		m[1] = m[0]
		time.Sleep(time.Millisecond)
	}
}

// keepSysV tests System V shared memory, semaphores and message queues.
func keepSysV([]string) (func(bool) error, error) {
	const key = 0x61626364
	shm, err := unix.SysvShmGet(key, 4096, unix.IPC_CREAT|0o600)
	if err != nil {
		return nil, fmt.Errorf("shmget: %w", err)
	}
	m, err := unix.SysvShmAttach(shm, 0, 0)
	if err != nil {
		return nil, fmt.Errorf("shmat: %w", err)
	}
	copy(m, "segment")
	sem, _, errno := unix.Syscall(unix.SYS_SEMGET, key, 1, unix.IPC_CREAT|0o600)
	if errno != 0 {
		return nil, fmt.Errorf("semget: %w", errno)
	}
	const getval, setval = 12, 16
	if _, _, errno := unix.Syscall6(unix.SYS_SEMCTL, sem, 0, setval, 3, 0, 0); errno != 0 {
		return nil, fmt.Errorf("semctl: %w", errno)
	}
	queue, _, errno := unix.Syscall(unix.SYS_MSGGET, key, unix.IPC_CREAT|0o600, 0)
	if errno != 0 {
		return nil, fmt.Errorf("msgget: %w", errno)
	}
	msg := struct {
		kind int64
		text [8]byte
	}{1, [8]byte{'m', 'e', 's', 's', 'a', 'g', 'e'}}
	if _, _, errno := unix.Syscall6(unix.SYS_MSGSND, queue, uintptr(unsafe.Pointer(&msg)), 8, 0, 0, 0); errno != 0 {
		return nil, fmt.Errorf("msgsnd: %w", errno)
	}
	return func(bool) error {
		var errs []error
		again, err := unix.SysvShmGet(key, 4096, 0)
		errs = append(errs, err, want("the segment's id", again, shm), want("the segment", string(m[:7]), "segment"))
		value, _, errno := unix.Syscall(unix.SYS_SEMCTL, sem, 0, getval)
		if errno != 0 {
			errs = append(errs, errno)
		}
		errs = append(errs, want("the semaphore", value, 3))
		got := msg
		got.text = [8]byte{}
		if _, _, errno := unix.Syscall6(unix.SYS_MSGRCV, queue, uintptr(unsafe.Pointer(&got)), 8, 0, unix.IPC_NOWAIT, 0); errno != 0 {
			errs = append(errs, fmt.Errorf("msgrcv: %w", errno))
		}
		return errors.Join(append(errs, want("the message", got.text, msg.text))...)
	}, nil
}
