// Package enter moves a daemon from a container to the host. Jails, their mounts and pinned BPF
// programs belong to the namespaces of the daemon, and processes to its cgroup: those of a
// container end with it.
package enter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/internal/thread"
)

// Config describes the daemon on the host.
type Config struct {
	PID      int      // process whose namespaces are those of the host, usually 1
	Data     string   // data directory; the programs are copied to Dir(Data)
	Settings string   // directory that is copied to the same path of the host, or ""
	Args     []string // arguments of the program
	Env      []string
	Programs []string // names of programs that the daemon executes; those that are missing here are left out
}

// Dir returns the directory of the programs of daemons that come from containers.
func Dir(data string) string { return filepath.Join(data, "host") }

// current is the link in Dir to the programs of the last daemon.
const current = "current"

const op = "enter.Host"

// Host executes this program again in the namespaces of the host, with the same process ID, so that
// the supervisor of the container also supervises the daemon. It returns only on failure.
func Host(cfg Config) error {
	host := fmt.Sprintf("/proc/%d", cfg.PID)
	if err := check(host); err != nil {
		return err
	}
	settings, err := readSettings(cfg.Settings)
	if err != nil {
		return err
	}
	servers, err := nameservers("/etc/resolv.conf")
	if err != nil {
		return err
	}
	set, err := collect(cfg.Programs)
	if err != nil {
		return err
	}
	dir := filepath.Join(Dir(cfg.Data), set.digest)
	tree, err := set.build(dir)
	if err != nil {
		return err
	}
	defer os.RemoveAll(tree)
	// The directory is opened here, and read from the host.
	built, err := os.OpenRoot(tree)
	if err != nil {
		return fmt.Errorf("open the copied programs: %w", err)
	}
	defer built.Close()
	return thread.Alone(func() error {
		if err := join(host); err != nil {
			return err
		}
		if err := settings.write(); err != nil {
			return err
		}
		if err := install(built, dir); err != nil {
			return err
		}
		if err := empty(built); err != nil {
			return err
		}
		path := filepath.Join(dir, "bin", "glasshouse")
		err := unix.Exec(path, append([]string{path}, cfg.Args...), append(environment(cfg.Env, dir), serversEnv+"="+strings.Join(servers, ",")))
		return fmt.Errorf("execute %s on the host: %w", path, err)
	})
}

// environment returns the environment of the daemon: it finds its programs first.
func environment(env []string, dir string) []string {
	var all []string
	for _, v := range env {
		if !strings.HasPrefix(v, "PATH=") {
			all = append(all, v)
		}
	}
	return append(all, "PATH="+filepath.Join(dir, "bin")+":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"XTABLES_LIBDIR="+filepath.Join(dir, xtables))
}

// check returns an error if this process cannot enter the namespaces of another one.
func check(other string) error {
	if os.Geteuid() != 0 {
		return fault.Cannot(op, "this process is not root", "run the container as root, with privileged: true")
	}
	same := func(ns string) (bool, error) {
		own, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			return false, fmt.Errorf("identify a namespace: %w", err)
		}
		others, err := os.Readlink(other + "/ns/" + ns)
		if err != nil {
			return false, &fault.Error{Op: op, Kind: fault.Denied, Err: fmt.Errorf("identify a namespace of the host: %w", err), Remedy: "run the container with privileged: true"}
		}
		return own == others, nil
	}
	for _, c := range []struct {
		ns      string
		same    bool
		problem string
		remedy  string
	}{
		{"user", true, "the container has a user namespace of its own", "run the container with hostUsers: true"},
		{"pid", true, "the container has a PID namespace of its own", "run the container with hostPID: true"},
		{"mnt", false, "process " + filepath.Base(other) + " is in the mount namespace of this one", "run the container with hostPID: true; on the host itself, omit --host"},
	} {
		got, err := same(c.ns)
		if err != nil {
			return err
		}
		if got != c.same {
			return fault.Cannot(op, c.problem, c.remedy)
		}
	}
	return nil
}

// join moves the calling thread to the namespaces of another process.
func join(other string) error {
	// A thread that shares its working directory with others cannot change its mount namespace
	// (setns(2)).
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("separate the working directory of a thread: %w", err)
	}
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	names := []string{"cgroup", "uts", "ipc", "net", "mnt"} // paths below /proc change with the last
	for _, name := range names {
		f, err := os.Open(other + "/ns/" + name)
		if err != nil {
			return fmt.Errorf("open a namespace of the host: %w", err)
		}
		files = append(files, f)
	}
	for i, f := range files {
		if err := unix.Setns(int(f.Fd()), 0); err != nil {
			return &fault.Error{Op: op, Kind: fault.Denied, On: names[i], Err: fmt.Errorf("enter the namespace of the host: %w", err), Remedy: "run the container with privileged: true"}
		}
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("change to the root directory of the host: %w", err)
	}
	return nil
}

// tree is the cgroup of daemons that come from containers. Its name does not begin like those of
// jails.
const tree = "daemon.glasshouse"

// Leave makes this process, which Host has executed, independent of its container. It moves it to a
// cgroup of the host of this name, so that the container engine ends only the daemon, and no
// process that it has started.
func Leave(name string) error {
	t, err := cgroup.New(tree)
	if err != nil {
		return err
	}
	c, err := t.Create(name, cgroup.Limits{})
	if errors.Is(err, fault.Conflict) { // it has processes of the previous daemon
		c, err = t.Open(name)
	}
	if err != nil {
		return err
	}
	if err := c.AddPID(os.Getpid()); err != nil {
		return err
	}
	if err := keepAlive(); err != nil {
		return err
	}
	return useNameservers(os.Getenv)
}

// keepAlive sets the OOM score of this process, and of those that it starts, to that of other
// daemons. Kubernetes sets that of a Pod by its requests of memory.
func keepAlive() error {
	const file = "/proc/self/oom_score_adj"
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the OOM score: %w", err)
	}
	score, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return fmt.Errorf("read the OOM score: %w", err)
	}
	if score <= 0 {
		return nil
	}
	err = os.WriteFile(file, []byte("0"), 0)
	if errors.Is(err, fs.ErrPermission) { // without CAP_SYS_RESOURCE
		return nil
	}
	return err
}

// serversEnv is the environment variable with the name servers of the container. The host may not
// know the names of the services of a cluster.
const serversEnv = "GLASSHOUSE_NAMESERVERS"

// nameservers returns the name servers in a file (resolv.conf(5)).
func nameservers(file string) ([]string, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the name servers of the container: %w", err)
	}
	var all []string
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) > 1 && f[0] == "nameserver" {
			all = append(all, f[1])
		}
	}
	return all, nil
}

// useNameservers makes this process resolve names with the name servers of its container.
func useNameservers(getenv func(string) string) error {
	list := getenv(serversEnv)
	if list == "" {
		return nil
	}
	servers := strings.Split(list, ",")
	for _, s := range servers {
		if _, err := netip.ParseAddr(s); err != nil {
			return fault.New(fault.Invalid, "enter.Leave", serversEnv, err)
		}
	}
	var next atomic.Uint32
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		server := servers[int(next.Add(1)-1)%len(servers)] // the resolver tries again after an error
		return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(server, "53"))
	}}
	return nil
}
