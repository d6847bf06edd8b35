package process

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const helperEnv = "PROCESS_TEST_HELPER"

func TestMain(m *testing.M) {
	if os.Getenv(helperEnv) == "" {
		os.Exit(m.Run())
	}
	help()
}

// help runs a process with a listener, a connection to itself, and a child.
func help() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		panic(err)
	}
	d, err := l.Accept()
	if err != nil {
		panic(err)
	}
	u, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		panic(err)
	}
	fmt.Println(l.Addr(), u.LocalAddr(), child.Process.Pid)
	var b [1]byte
	os.Stdin.Read(b[:]) // until the test ends
	child.Process.Kill()
	child.Wait()
	_, _, _ = c, d, u
	os.Exit(0)
}

// ours returns the cgroup of this process in some hierarchy.
func ours(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.SplitN(line, ":", 3)[2]
}

func TestList(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir() + "/a\n\xff"
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	cmd := exec.Command(os.Args[0])
	cmd.Args = []string{"a\x01 name", "", "\xff\n"}
	cmd.Env = []string{helperEnv + "=1", "ODD=\xfe\n=", "EMPTY=", "PATH=" + os.Getenv("PATH")}
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	var tcp, udp string
	var child int
	if _, err := fmt.Fscan(bufio.NewReader(out), &tcp, &udp, &child); err != nil {
		t.Fatal(err)
	}
	first := cmd.Process.Pid
	all, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", first, first))
	if err != nil {
		t.Skip("this kernel does not tell children: ", err)
	}
	var hostChild int
	for entry := range strings.FieldsSeq(string(all)) {
		fmt.Sscan(entry, &hostChild)
	}
	if hostChild == 0 { // child of another thread
		entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", first))
		for _, e := range entries {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", first, e.Name()))
			fmt.Sscan(string(b), &hostChild)
		}
	}
	// exec closes descriptors before the arguments of the new program are visible, so a closed
	// descriptor does not mean that the child is ready.
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", hostChild)); err != nil || len(b) > 0 {
			break
		}
	}
	const nobody = 1 << 29
	list, err := List([]int{first, hostChild, nobody}, first, ours(t))
	if err != nil || len(list) != 2 {
		t.Fatalf("List = %+v, %v", list, err)
	}
	p, c := list[0], list[1]
	if p.PID != 1 || p.PPID != 0 || !slices.Equal(p.Argv, cmd.Args) || !slices.Equal(p.Env, cmd.Env) || p.Cwd != dir || p.Exe == "" || p.Comm == "" || p.Cut {
		t.Errorf("the first process is %+v", p)
	}
	if d := p.Began.Sub(before); d < -time.Second || d > 10*time.Second {
		t.Errorf("it began %v after it was started", d)
	}
	if c.PID != child || c.PPID != 1 || !slices.Equal(c.Argv, []string{"sleep", "1000"}) || c.Start < p.Start || c.Start > Now() {
		t.Errorf("its child is %+v", c)
	}
	var said []string
	for _, s := range p.Sockets {
		said = append(said, s.Proto+" "+s.State)
		if s.Proto == "udp" && s.Local != udp || s.State == "listening" && s.Local != tcp || s.State == "established" && s.Local != tcp && s.Remote != tcp {
			t.Errorf("a socket is %+v", s)
		}
	}
	if slices.Sort(said); strings.Join(said, ", ") != "tcp established, tcp established, tcp listening, udp open" {
		t.Errorf("sockets are %v", said)
	}
	if list, err := List([]int{first, hostChild}, first, "/of-nobody"); err != nil || len(list) != 0 {
		t.Errorf("List of another cgroup = %+v, %v; want none", list, err)
	}
}

func TestLongEnvironmentIsTruncated(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	for n := range 40 {
		cmd.Env = append(cmd.Env, fmt.Sprintf("V%d=%s", n, strings.Repeat("x", 4000)))
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	r := newReading(ours(t))
	p, _, _, err := r.process(cmd.Process.Pid)
	if err != nil || !p.Cut || len(p.Env) < 10 || len(strings.Join(p.Env, " ")) > maxText {
		t.Errorf("%d variables, cut %v, %v", len(p.Env), p.Cut, err)
	}
	r.texts = 100
	if p, _, _, err = r.process(cmd.Process.Pid); err != nil || !p.Cut || len(p.Env) > 1 {
		t.Errorf("with little room left: %d variables, cut %v, %v", len(p.Env), p.Cut, err)
	}
}

func TestParseTable(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100 0 0 10 0
   1: 0200000A:C350 08080808:0035 01 00000000:00000000 00:00000000 00000000     0        0 12 1
   2: 0200000A:C351 08080808:0035 FF 00000000:00000000 00:00000000 00000000     0        0 13 1
   3: garbage 08080808:0035 01 00000000:00000000 00:00000000 00000000     0        0 14 1
   4: 0200000A:C352 08080808:0035 06 00000000:00000000 00:00000000 00000000     0        0 0 1
   5: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 15 1
   6: 0000000000000000FFFF00000100007F:0051 0000000000000000FFFF00000100007F:0052 01 0:0 0:0 0 0 0 16 1
`
	got := map[uint64]Socket{}
	parseTable("tcp", []byte(table), got)
	want := map[uint64]Socket{
		11: {"tcp", "127.0.0.1:8080", "", "listening"}, 12: {"tcp", "10.0.0.2:50000", "8.8.8.8:53", "established"},
		13: {"tcp", "10.0.0.2:50001", "8.8.8.8:53", ""}, 15: {"tcp", "[::1]:80", "", "listening"},
		16: {"tcp", "127.0.0.1:81", "127.0.0.1:82", "established"},
	}
	if netip.MustParseAddr("127.0.0.1").As4()[0] != 127 || len(got) != len(want) {
		t.Errorf("%d sockets, want %d", len(got), len(want))
	}
	for inode, s := range want {
		if got[inode] != s {
			t.Errorf("socket %d is %+v, want %+v", inode, got[inode], s)
		}
	}
}

func FuzzParseProc(f *testing.F) {
	f.Add([]byte("0: 0100007F:1F90 00000000:0000 0A 0:0 0:0 0 0 0 11 1"))
	f.Add([]byte("NSpid:\t77\t3\t1\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		all := map[uint64]Socket{}
		parseTable("tcp", b, all)
		for inode, s := range all {
			if _, err := netip.ParseAddrPort(s.Local); err != nil || inode == 0 {
				t.Errorf("%q is parsed as socket %d %+v", b, inode, s)
			}
		}
		insidePID(b)
		within(string(b), "/x/y")
	})
}

func BenchmarkList(b *testing.B) {
	var pids []int
	for range 10 {
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		defer cmd.Wait()
		defer cmd.Process.Kill()
		pids = append(pids, cmd.Process.Pid)
	}
	file, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		b.Fatal(err)
	}
	line, _, _ := strings.Cut(string(file), "\n")
	for b.Loop() {
		if list, err := List(pids, pids[0], strings.SplitN(line, ":", 3)[2]); err != nil || len(list) != 10 {
			b.Fatal(len(list), err)
		}
	}
}
