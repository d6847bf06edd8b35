package network_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Roles of the test binary other than the test: a jail's init, one of its processes, or a daemon.
const (
	insideEnv = "GLASSHOUSE_NETWORK_TEST"
	actEnv    = "GLASSHOUSE_NETWORK_ACT"
)

// bpffs is the mount point of the tests' own BPF file system.
var bpffs string

// The tests run in their own network and mount namespaces, so they do not change the machine's
// network.
func TestMain(m *testing.M) {
	if act := os.Getenv(actEnv); act != "" {
		if err := acts[act](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, act, os.Args[1:], err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Geteuid() != 0 {
		os.Exit(m.Run()) // tests that need root skip themselves
	}
	if os.Getenv(insideEnv) != "" {
		os.Exit(inside(m))
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func inside(m *testing.M) int {
	fail := func(err error) int { fmt.Println(err); return 1 }
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fail(err)
	}
	dir, err := os.MkdirTemp("", "glasshouse-network-")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	bpffs = filepath.Join(dir, "bpf")
	if err := os.Mkdir(bpffs, 0o700); err != nil {
		return fail(err)
	}
	if err := unix.Mount("bpf", bpffs, "bpf", 0, ""); err != nil {
		fmt.Println("no BPF file system:", err)
		bpffs = ""
	} else {
		defer unix.Unmount(bpffs, unix.MNT_DETACH)
	}
	return m.Run()
}

// An order is a command for a jail's init. An answer is its result.
type order struct {
	Act  string
	Args []string
	Wait bool
}

type answer struct {
	PID int // in the jail
	Out string
	Err string
}

// initAct is a jail's init: it starts processes on request until its input ends.
func initAct([]string) error {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var o order
		if err := in.Decode(&o); err != nil {
			return nil
		}
		cmd := exec.Command("/proc/self/exe", o.Args...)
		cmd.Env = append(os.Environ(), actEnv+"="+o.Act)
		cmd.Stderr = os.Stderr
		pipe, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		var a answer
		if err != nil {
			a.Err = err.Error()
		} else {
			a.PID = cmd.Process.Pid
			r := bufio.NewReader(pipe)
			a.Out, _ = r.ReadString('\n')
			if o.Wait {
				rest, _ := r.ReadString(0)
				a.Out += rest
				if err := cmd.Wait(); err != nil {
					a.Err = err.Error()
				}
			}
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
}
