package network_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/netns"
	"glasshouse/id"
	"glasshouse/observe"
	"glasshouse/observe/event"
	"glasshouse/observe/network"
)

// A log is an in-memory sink.
type log struct {
	mu      sync.Mutex
	events  []event.Event
	full    bool // the log has no room
	unsafe  bool // no event is written
	pushed  int
	written uint64
}

func (l *log) Append(e *event.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := *e
	c.Seq = uint64(len(l.events) + 1)
	l.events = append(l.events, c)
	if !l.unsafe {
		l.written = c.Seq
	}
}
func (l *log) HasRoom() bool   { l.mu.Lock(); defer l.mu.Unlock(); return !l.full }
func (l *log) Last() uint64    { l.mu.Lock(); defer l.mu.Unlock(); return uint64(len(l.events)) }
func (l *log) Written() uint64 { l.mu.Lock(); defer l.mu.Unlock(); return l.written }
func (l *log) FlushSoon()      { l.mu.Lock(); defer l.mu.Unlock(); l.pushed++ }

func (l *log) Kept(since int64, of event.Type, each func(*event.Event)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.events {
		if e := l.events[i]; e.Type == of && e.NS >= since {
			each(&e)
		}
	}
	return nil
}

func (l *log) setFull(on bool) { l.mu.Lock(); defer l.mu.Unlock(); l.full = on }

// all returns the events for which f returns true.
func (l *log) all(f func(*event.Event) bool) (found []event.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.events {
		if f(&l.events[i]) {
			found = append(found, l.events[i])
		}
	}
	return found
}

func isNet(e *event.Event) bool { return e.Type == event.Net }

func (l *log) String() string {
	var b strings.Builder
	for _, e := range l.all(func(*event.Event) bool { return true }) {
		b.Write(e.AppendJSON(nil))
		b.WriteByte('\n')
	}
	return b.String()
}

// A harness is a host with a source and jails.
type harness struct {
	testing.TB
	source *network.Source
}

func newHarness(t testing.TB, c network.Config) *harness {
	t.Helper()
	h := &harness{TB: t}
	if os.Geteuid() != 0 {
		t.Skip("seeing packets needs root")
	}
	h.source = network.New(c)
	switch err := h.source.Probe(t.Context()); {
	case errors.Is(err, fault.Unsupported):
		t.Skip(err)
	case err != nil:
		t.Fatalf("Probe was inconclusive: %v", err)
	}
	t.Cleanup(func() { h.must(h.source.Close()) })
	return h
}

func (h *harness) must(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

// A jail is a process in separate namespaces with a veth link to the host.
type jail struct {
	*harness
	observe.Target
	host, own   string // addresses of the link
	host6, own6 string
	in          io.WriteCloser
	out         *json.Decoder
	mu          sync.Mutex
	cmd         *exec.Cmd
	log         *log
	watch       observe.Watch
}

var jailNumbers = struct {
	sync.Mutex
	n int
}{}

// jail creates a jail with a link to the host. The link carries no IPv6 traffic unless the test
// sends it.
func (h *harness) jail() *jail {
	h.Helper()
	jailNumbers.Lock()
	jailNumbers.n++
	n := jailNumbers.n
	jailNumbers.Unlock()
	j := &jail{harness: h, log: &log{}}
	j.host, j.own = fmt.Sprintf("10.77.%d.1", n), fmt.Sprintf("10.77.%d.2", n)
	j.host6, j.own6 = fmt.Sprintf("fd77:%x::1", n), fmt.Sprintf("fd77:%x::2", n)
	j.Jail, j.Dir, j.Runtime, j.Veth = id.Jail(fmt.Sprintf("j-network%05d", n)), h.TempDir(), "runc", fmt.Sprintf("nt%d", n)

	j.cmd = exec.Command("/proc/self/exe")
	j.cmd.Env = append(os.Environ(), actEnv+"=init")
	j.cmd.Stderr = os.Stderr
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS, Pdeathsig: syscall.SIGKILL}
	if root := cgroup2(); root != "" {
		j.CgroupDir = filepath.Join(root, fmt.Sprintf("glasshouse-network-test-%d-%d", os.Getpid(), n))
		h.must(os.Mkdir(j.CgroupDir, 0o755))
		h.Cleanup(func() { h.must(removeCgroup(j.CgroupDir)) })
		f, err := os.Open(j.CgroupDir)
		h.must(err)
		defer f.Close()
		j.cmd.SysProcAttr.UseCgroupFD, j.cmd.SysProcAttr.CgroupFD = true, int(f.Fd())
	}
	var err error
	j.in, err = j.cmd.StdinPipe()
	h.must(err)
	out, err := j.cmd.StdoutPipe()
	h.must(err)
	j.out = json.NewDecoder(out)
	h.must(j.cmd.Start())
	j.PID = j.cmd.Process.Pid
	h.Cleanup(j.kill)

	veth := netlink.NewVeth(netlink.NewLinkAttrs())
	veth.Name, veth.PeerName, veth.PeerNamespace = j.Veth, "eth0", netlink.NsPid(j.PID)
	h.must(netlink.LinkAdd(veth))
	quiet(h, j.Veth)
	h.must(address("lo", ""))
	h.must(address(j.Veth, j.host+"/24", j.host6+"/64"))
	h.must(j.enter(func() error {
		quiet(h, "eth0")
		quiet(h, "lo")
		return errors.Join(address("lo"), address("eth0", j.own+"/24", j.own6+"/64"))
	}))
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) { // until its link is up, the host drops what it sends
		if l, err := netlink.LinkByName(j.Veth); err == nil && l.Attrs().OperState == netlink.OperUp {
			return j
		}
	}
	h.Fatal("the link does not come up")
	return nil
}

func cgroup2() string {
	for _, dir := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			return dir
		}
	}
	return ""
}

func removeCgroup(dir string) (err error) {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) { // the kernel releases it asynchronously
		if err = unix.Rmdir(dir); err != unix.EBUSY {
			return err
		}
	}
	return err
}

// quiet keeps the kernel from sending packets of its own on a link.
func quiet(t testing.TB, link string) {
	for name, value := range map[string]string{"addr_gen_mode": "1", "accept_ra": "0", "router_solicitations": "0", "dad_transmits": "0"} {
		os.WriteFile("/proc/sys/net/ipv6/conf/"+link+"/"+name, []byte(value), 0)
	}
}

func address(link string, addrs ...string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	for _, s := range addrs {
		if s == "" {
			continue
		}
		a, err := netlink.ParseAddr(s)
		if err != nil {
			return err
		}
		a.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(l, a); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(l)
}

func (j *jail) enter(f func() error) error {
	return netns.Do(fmt.Sprintf("/proc/%d/ns/net", j.PID), f)
}

func (j *jail) kill() {
	j.in.Close()
	j.cmd.Process.Kill()
	j.cmd.Wait()
	if l, err := netlink.LinkByName(j.Veth); err == nil {
		netlink.LinkDel(l)
	}
}

// attach watches the jail until the end of the test.
func (j *jail) attach() *jail {
	j.Helper()
	w, err := j.source.Attach(j.Context(), j.Target, j.log)
	j.must(err)
	j.watch = w
	j.Cleanup(func() { j.must(w.Close()) })
	return j
}

func (j *jail) drain() {
	j.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	j.must(j.watch.Drain(ctx))
}

func (j *jail) tell(o order) answer {
	j.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.must(json.NewEncoder(j.in).Encode(o))
	var a answer
	j.must(j.out.Decode(&a))
	if a.Err != "" {
		j.Fatalf("%s %v in the jail: %s, %s", o.Act, o.Args, a.Out, a.Err)
	}
	return a
}

// run executes an act in the jail to its end. start only waits until it has written a line.
func (j *jail) run(act string, args ...string) answer {
	j.Helper()
	return j.tell(order{act, args, true})
}
func (j *jail) start(act string, args ...string) answer {
	j.Helper()
	return j.tell(order{act, args, false})
}

// counters returns the counters of the jail's end of the link.
func (j *jail) counters() (s netlink.LinkStatistics) {
	j.Helper()
	j.must(j.enter(func() error {
		l, err := netlink.LinkByName("eth0")
		if err == nil {
			s = *l.Attrs().Statistics
		}
		return err
	}))
	return s
}

// acts are the programs that processes of jails can execute.
var acts map[string]func(args []string) error

func init() {
	acts = map[string]func(args []string) error{
		"init": initAct, "send": sendAct, "echo": echoAct, "get": getAct, "serve": serveAct, "child": childAct,
		"ping": pingAct, "ask": askAct, "hello": helloAct, "flood": floodAct, "daemon": daemonAct,
	}
}

func number(s string) int { n, _ := strconv.Atoi(s); return n }

// sendAct ADDR N SIZE: sends N datagrams and, if ADDR replies, receives as many replies.
func sendAct(args []string) error {
	c, err := net.Dial("udp", args[0])
	if err != nil {
		return err
	}
	defer c.Close()
	b := make([]byte, number(args[2]))
	for range number(args[1]) {
		if _, err := c.Write(b); err != nil {
			return err
		}
		c.SetReadDeadline(time.Now().Add(30 * time.Second))
		if _, err := c.Read(make([]byte, 65536)); err != nil {
			return err
		}
	}
	return nil
}

// floodAct ADDR N SIZE: sends N unconnected datagrams as fast as possible.
func floodAct(args []string) error {
	to, err := net.ResolveUDPAddr("udp", args[0])
	if err != nil {
		return err
	}
	c, err := net.ListenUDP("udp", nil)
	if err != nil {
		return err
	}
	defer c.Close()
	b := make([]byte, number(args[2]))
	for i := range number(args[1]) {
		binary.BigEndian.PutUint32(b, uint32(i))
		if _, err := c.WriteToUDP(b, to); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return err
		}
	}
	return nil
}

// echoAct ADDR: prints its address, then replies to datagrams forever.
func echoAct(args []string) error {
	c, err := net.ListenPacket("udp", args[0])
	if err != nil {
		return err
	}
	fmt.Println(c.LocalAddr())
	return echo(c)
}

func echo(c net.PacketConn) error {
	b := make([]byte, 65536)
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return err
		}
		if _, err := c.WriteTo(b[:n], from); err != nil {
			return err
		}
	}
}

// getAct ADDR N: sends N bytes, closes its write side, and reads to the end.
func getAct(args []string) error {
	c, err := net.Dial("tcp", args[0])
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write(make([]byte, number(args[1]))); err != nil {
		return err
	}
	c.(*net.TCPConn).CloseWrite()
	n, err := io.Copy(io.Discard, c)
	fmt.Println(n)
	return err
}

// serveAct ADDR: prints its address, then passes every connection to a new child process.
func serveAct(args []string) error {
	l, err := net.Listen("tcp", args[0])
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		f, err := c.(*net.TCPConn).File()
		if err != nil {
			return err
		}
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), actEnv+"=child")
		cmd.ExtraFiles = []*os.File{f}
		if err := cmd.Start(); err != nil {
			return err
		}
		f.Close()
		c.Close()
		go cmd.Wait()
	}
}

// childAct reads a request from descriptor 3 and replies with its pid.
func childAct([]string) error {
	c, err := net.FileConn(os.NewFile(3, "connection"))
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := io.Copy(io.Discard, c); err != nil {
		return err
	}
	_, err = fmt.Fprintln(c, os.Getpid())
	return err
}

// pingAct ADDR: sends one echo request from a raw socket.
func pingAct(args []string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	to := &unix.SockaddrInet4{Addr: [4]byte(net.ParseIP(args[0]).To4())}
	msg := []byte{8, 0, 0, 0, 0x12, 0x34, 0, 1}
	binary.BigEndian.PutUint16(msg[2:], ^uint16(0x0800+0x1234+1))
	if err := unix.Sendto(fd, msg, 0, to); err != nil {
		return err
	}
	b := make([]byte, 1500)
	n, _, err := unix.Recvfrom(fd, b, 0)
	if err == nil && (n < 28 || b[20] != 0) {
		err = fmt.Errorf("no answer: %x", b[:n])
	}
	return err
}

// askAct SERVER NAME PORT: resolves the name at the server and connects to the first address at
// the port.
func askAct(args []string) error {
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", args[0])
	}}
	addrs, err := r.LookupHost(context.Background(), args[1])
	if err != nil {
		return err
	}
	return getAct([]string{net.JoinHostPort(addrs[0], args[2]), "10"})
}
