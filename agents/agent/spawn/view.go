package spawn

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/overlay"
	"glasshouse/internal/dirs"
)

// Paths and the user id of an agent in bubblewrap.
const (
	homeDir      = "/home/agent"
	workspaceDir = "/workspace"
	shimPath     = "/.glasshouse/agent"
	socketPath   = "/.glasshouse/gateway.sock"
	agentUID     = "1000"
)

// A view lists the files of the host that an agent in bubblewrap sees in addition to programs.
type view struct {
	mounts []bindMount
	bwrap  bindMount // bubblewrap itself, not visible to the agent
	user   uint32    // host user id of the agent; 0: the daemon's user
}

// A bindMount makes a file or directory of the host visible to the agent.
type bindMount struct {
	hostPath, target string
	source           string // path under which bubblewrap opens it
	writable         bool   // writable; files of the owner appear as the agent's
}

// staging is a directory that exists on every host. If root starts bubblewrap, the bind mounts
// are staged there in a private mount namespace, because the agent's user may lack search
// permission for the real paths.
const staging = "/tmp"

func (b *Bwrap) view(s Start, bwrap string) *view {
	v := &view{bwrap: bindMount{hostPath: bwrap, source: bwrap}}
	if os.Geteuid() == 0 {
		v.user = firstUser + b.next.Add(1)%users
		v.bwrap.source = filepath.Join(staging, "bwrap")
	}
	add := func(hostPath, target string, writable bool) {
		bm := bindMount{hostPath: hostPath, target: target, source: hostPath, writable: writable}
		if v.user != 0 {
			bm.source = filepath.Join(staging, strconv.Itoa(len(v.mounts)))
		}
		v.mounts = append(v.mounts, bm)
	}
	for _, dir := range s.ReadOnly {
		add(dir, dir, false)
	}
	if s.Workspace != "" {
		add(s.Workspace, workspaceDir, true)
	}
	add(b.cfg.Agent, shimPath, false)
	if s.Socket != "" {
		add(s.Socket, socketPath, true)
	}
	return v
}

// apply prepares l to stage the view if the daemon runs as root. bubblewrap then runs as root
// of a user namespace with a single user.
func (v *view) apply(l *launch) {
	if v.user == 0 {
		return
	}
	attr := l.cmd.SysProcAttr
	attr.Cloneflags |= unix.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(v.user), Size: 1}}
	attr.GidMappings = attr.UidMappings
	attr.GidMappingsEnableSetgroups = true
	attr.Credential = &syscall.Credential{}
	l.prepare = v.stage
}

// stage creates the bind mounts in staging, where the agent's user can open them. It moves
// the calling thread to a new mount namespace, so the thread must not be reused.
func (v *view) stage() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("disable mount propagation to the host: %w", err)
	}
	mounts := append([]bindMount{v.bwrap}, v.mounts...)
	open := make([]*os.File, len(mounts))
	defer func() {
		for _, f := range open {
			f.Close() // Close of a nil *os.File returns an error
		}
	}()
	for i, bm := range mounts {
		fd, err := unix.Open(bm.hostPath, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return fault.New(fault.Invalid, "spawn.Start", bm.hostPath, err)
		}
		open[i] = os.NewFile(uintptr(fd), bm.hostPath)
	}
	needed := func(m string) bool {
		return slices.ContainsFunc(mounts, func(bm bindMount) bool { return under(bm.hostPath, m) })
	}
	if err := unmountBelow(staging, needed); err != nil {
		return fmt.Errorf("unmount the mounts that the agent does not need: %w", err)
	}
	if err := unix.Mount("tmpfs", staging, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount the staging directory: %w", err)
	}
	for i, bm := range mounts {
		if err := v.mount(open[i], bm); err != nil {
			return fmt.Errorf("bind mount %s: %w", bm.hostPath, err)
		}
	}
	return unmountBelow("/", func(m string) bool {
		return slices.ContainsFunc(keptDirs, func(dir string) bool { return under(m, dir) })
	})
}

// keptDirs lists the directories that bubblewrap needs during its start.
var keptDirs = append([]string{"/etc", "/proc", "/sys", "/dev", "/nix", staging}, programDirs...)

// unmountBelow unmounts all mounts below a directory in this mount namespace, except those for
// which keep returns true. The namespace lives as long as the agent. Without this it would
// keep the disks of all current jails mounted.
func unmountBelow(dir string, keep func(mount string) bool) error {
	mounts, err := overlay.MountsBelow(dir)
	if err != nil {
		return fmt.Errorf("list the mounts below %s: %w", dir, err)
	}
	for _, m := range mounts { // deepest first
		if m == "/" || m == dir || keep(m) {
			continue
		}
		if err := overlay.Unmount(m); err != nil {
			return fmt.Errorf("unmount a mount of the host: %w", err)
		}
	}
	return nil
}

// under reports whether a path is dir or below it.
func under(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// mount bind mounts f at the source path of bm. In a writable mount the owner of f is mapped
// to the agent's user; all other owners are unmapped.
func (v *view) mount(f *os.File, bm bindMount) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("stat the mounted file: %w", err)
	}
	if err := dirs.CreateMountPoint(bm.source, st.Mode&unix.S_IFMT == unix.S_IFDIR); err != nil {
		return fmt.Errorf("create the mount point %s: %w", bm.source, err)
	}
	opts := overlay.CloneOptions{Options: overlay.Options{ReadOnly: !bm.writable, NoSuid: true, NoDev: true}, Recursive: !bm.writable}
	if bm.writable {
		ids, err := overlay.IDMap([]overlay.Mapping{{Disk: st.Uid, Host: v.user, Count: 1}}, []overlay.Mapping{{Disk: st.Gid, Host: v.user, Count: 1}})
		if err != nil {
			return fmt.Errorf("map the owner to the agent's user: %w", err)
		}
		defer ids.Close()
		opts.IDMap = ids
	}
	return overlay.Clone(dirs.ProcPath(f), bm.source, opts)
}

// arguments collects the arguments of bubblewrap and the files that they refer to.
type arguments struct {
	in   *inheritedFiles
	list []string
}

func (a *arguments) add(args ...string) { a.list = append(a.list, args...) }

// file adds a file with the given content at path. option determines whether it is writable.
func (a *arguments) file(option, perms, path string, data []byte) error {
	n, err := a.in.addData(filepath.Base(path), data)
	if err != nil {
		return err
	}
	a.add("--perms", perms, option, strconv.Itoa(n), path)
	return nil
}

// describe adds the arguments for namespaces, environment and mounts. bubblewrap processes
// mounts in order.
func (a *arguments) describe(s Start, v *view) error {
	a.add("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup",
		"--uid", agentUID, "--gid", agentUID, "--hostname", "agent",
		"--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL", "--clearenv")
	for _, kv := range environment(homeDir, "http://localhost:4097", s.Env) {
		name, value, _ := strings.Cut(kv, "=")
		a.add("--setenv", name, value)
	}
	a.programs()
	if err := a.etc(); err != nil {
		return err
	}
	size := strconv.FormatInt(tmpfsSize(s.Limits), 10)
	a.add("--proc", "/proc")
	for _, path := range []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"} {
		if exists(path) {
			a.add("--ro-bind", path, path)
		}
	}
	for _, path := range []string{"/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/timer_list"} {
		if exists(path) {
			a.add("--dev-bind", "/dev/null", path)
		}
	}
	a.add("--dev", "/dev", "--perms", "1777", "--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev",
		"--perms", "1777", "--size", size, "--tmpfs", "/tmp",
		"--perms", "0755", "--dir", "/home", "--perms", "0700", "--size", size, "--tmpfs", homeDir,
		"--perms", "0755", "--dir", "/var", "--symlink", "../tmp", "/var/tmp", "--perms", "0755", "--dir", "/run",
		"--perms", "0755", "--dir", "/.glasshouse")
	if err := a.home(s.Files); err != nil {
		return err
	}
	for _, bm := range v.mounts {
		option := "--ro-bind"
		if bm.writable {
			option = "--bind"
		}
		a.add(option, bm.source, bm.target)
	}
	a.add("--remount-ro", "/", "--chdir", initialDir(s))
	return nil
}

// initialDir returns the initial working directory of an agent.
func initialDir(s Start) string {
	switch {
	case s.Cwd != "":
		return s.Cwd
	case s.Workspace != "":
		return workspaceDir
	}
	return homeDir
}

var programDirs = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}

// programs adds the program directories of the host. A symbolic link such as /bin stays a
// link.
func (a *arguments) programs() {
	for _, dir := range append([]string{"/nix/store"}, programDirs...) {
		st, err := os.Lstat(dir)
		switch {
		case err != nil:
		case st.IsDir():
			a.add("--ro-bind", dir, dir)
		case st.Mode()&os.ModeSymlink != 0:
			if to, err := os.Readlink(dir); err == nil {
				a.add("--symlink", to, dir)
			}
		}
	}
}

// etc adds an /etc that contains no users and no host names of the host.
func (a *arguments) etc() error {
	a.add("--perms", "0755", "--dir", "/etc")
	for _, path := range []string{"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/ssl/cert.pem",
		"/etc/ca-certificates", "/etc/pki/tls/certs", "/etc/pki/tls/openssl.cnf", "/etc/pki/ca-trust/extracted", "/etc/crypto-policies", "/etc/localtime", "/etc/mime.types"} {
		if exists(path) {
			a.add("--ro-bind", path, path)
		}
	}
	for _, f := range []struct{ name, text string }{
		{"passwd", "root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:1000:1000:agent:" + homeDir + ":/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"},
		{"group", "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n"},
		{"hosts", "127.0.0.1 localhost agent\n"},
		{"nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"},
		{"resolv.conf", ""},
		{"hostname", "agent\n"},
	} {
		if err := a.file("--ro-bind-data", "0444", "/etc/"+f.name, []byte(f.text)); err != nil {
			return err
		}
	}
	return nil
}

// home adds files to the agent's home.
func (a *arguments) home(files map[string][]byte) error {
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	created := map[string]bool{homeDir: true}
	for _, name := range names {
		path := filepath.Join(homeDir, name)
		var parents []string
		for dir := filepath.Dir(path); !created[dir]; dir = filepath.Dir(dir) {
			created[dir] = true
			parents = append(parents, dir)
		}
		for _, dir := range slices.Backward(parents) {
			a.add("--perms", "0700", "--dir", dir)
		}
		if err := a.file("--file", "0600", path, files[name]); err != nil {
			return errors.Join(fmt.Errorf("add %s to the agent's home", name), err)
		}
	}
	return nil
}

// tmpfsSize returns the size limit in bytes of each tmpfs.
func tmpfsSize(l Limits) int64 {
	if l.Memory > 0 {
		return max(l.Memory/2, 1<<20)
	}
	return 1 << 30
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
