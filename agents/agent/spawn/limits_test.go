package spawn_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"glasshouse/agents/agent/spawn"
)

// requireLimit skips the test if the spawner cannot enforce a limit on this host.
func (h *harness) requireLimit(what string) {
	h.t.Helper()
	if why, lacking := h.spawner.UnenforcedLimits()[what]; lacking {
		h.t.Skipf("the limit %s is not enforced: %s", what, why)
	}
}

// forkBombScript forks until fork fails and prints the number of children.
const forkBombScript = `import os, time
n = 0
try:
    while n < 2000:
        if os.fork() == 0:
            time.sleep(1000)
        n += 1
except OSError as e:
    print("children", n, flush=True)
`

func forkBomb(t *testing.T, h *harness) {
	h.requireLimit("pids")
	out := h.must("exec /usr/bin/python3 -c '"+forkBombScript+"'", func(s *spawn.Start) { s.Limits.PIDs = 40 })
	n, err := strconv.Atoi(strings.TrimPrefix(out, "children "))
	if err != nil || n < 10 || n > 40+32 {
		t.Errorf("with a limit of 40 the output is %q", out)
	}
}

func memoryBomb(t *testing.T, h *harness) {
	out, exit := h.sh(`exec /usr/bin/python3 -c 'b = bytearray(400 << 20); print("allocated")'`, func(s *spawn.Start) { s.Limits.Memory = 64 << 20 })
	if exit.Code == 0 || strings.Contains(out, "allocated") {
		t.Errorf("with a limit of 64 MB: exit %+v: %s", exit, out)
	}
	_, lacking := h.spawner.UnenforcedLimits()["memory"]
	if !lacking && exit.Limit != "memory" {
		t.Errorf("exit %+v, want the limit memory", exit)
	}
	if lacking && (exit.Code != 1 || !strings.Contains(out, "MemoryError")) {
		t.Errorf("exit %+v, want code 1 and MemoryError: %s", exit, out)
	}
}

func needPython(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/usr/bin/python3"); err != nil {
		t.Skip("needs /usr/bin/python3")
	}
}

func TestForkBombIsLimited(t *testing.T) {
	needPython(t)
	each(t, forkBomb)
}

func TestMemoryBombIsLimited(t *testing.T) {
	needPython(t)
	each(t, memoryBomb)
}

// TestAgentsOfUnprivilegedDaemon runs the tests that depend on the user of the daemon.
func TestAgentsOfUnprivilegedDaemon(t *testing.T) {
	if os.Geteuid() == 0 {
		asUser(t, false)
		return
	}
	runAsUnprivileged(t)
}

// TestAgentsInADelegatedCgroup runs the same tests for a user with a delegated cgroup.
func TestAgentsInADelegatedCgroup(t *testing.T) {
	if os.Geteuid() == 0 {
		asUser(t, true)
		return
	}
	if why := open(t, "bwrap", config(t, tempDir(t))).UnenforcedLimits()["memory"]; strings.Contains(why, "no cgroup is delegated") {
		t.Fatalf("the delegated cgroup is not used: %s", why)
	}
	runAsUnprivileged(t)
}

func runAsUnprivileged(t *testing.T) {
	for name, f := range map[string]func(*testing.T){
		"Home": TestAgentSeesHomeWorkspaceAndGateway, "Exit": TestExitCodes, "Signals": TestSignal,
		"NothingOutlives": TestDescendantsDieWithTheAgent, "Unstartable": TestInvalidStartIsRejected, "DaemonKilled": TestAgentsDieWithTheDaemon,
		"ForkBomb": TestForkBombIsLimited, "MemoryBomb": TestMemoryBombIsLimited,
	} {
		t.Run(name, f)
	}
}

func TestTmpfsIsLimited(t *testing.T) {
	h := newHarness(t, "bwrap")
	out, exit := h.sh(`head -c 200M /dev/zero > /tmp/a; head -c 200M /dev/zero > "$HOME/b"; head -c 200M /dev/zero > /dev/shm/c; du -sm /tmp "$HOME" /dev/shm | awk '{s+=$1} END {print s}'`,
		func(s *spawn.Start) { s.Limits.Memory = 32 << 20 })
	if exit.Code == 0 && exit.Limit == "" {
		lines := strings.Split(out, "\n")
		if n, err := strconv.Atoi(lines[len(lines)-1]); err != nil || n > 3*16 {
			t.Errorf("with a limit of 32 MB the files have %s MB", lines[len(lines)-1])
		}
	}
}

// daemonEnv is the environment variable that makes TestDaemonProcess start an agent and wait
// until it is killed.
const daemonEnv = "GLASSHOUSE_SPAWN_DAEMON"

func TestDaemonProcess(t *testing.T) {
	args := strings.Split(os.Getenv(daemonEnv), " ")
	if len(args) != 3 {
		return // only for TestAgentsDieWithTheDaemon
	}
	kind, dir := args[0], args[1]
	cfg := spawn.Config{Agent: agentProgram(t), Dir: filepath.Join(dir, "homes"), CgroupPrefix: "glasshouse-spawn-" + filepath.Base(dir)}
	var s spawn.Spawner
	var err error
	if kind == "bwrap" {
		s, err = spawn.NewBwrap(t.Context(), cfg)
	} else {
		s, err = spawn.NewUnjailed(t.Context(), cfg)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Start(context.Background(), spawn.Start{Argv: []string{"/bin/sh", "-c", startDescendants + "wait"}, Socket: args[2], Stdout: os.Stdout, Stderr: os.Stderr, Env: []string{"MARK=" + dir}})
	if err != nil {
		t.Fatal(err)
	}
	select {}
}

func TestAgentsDieWithTheDaemon(t *testing.T) {
	each(t, func(t *testing.T, h *harness) {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		dir := tempDir(t)
		bin, err := build()
		if err != nil {
			t.Fatal(err)
		}
		out := &buffer{}
		cmd := exec.Command(self, "-test.run=^TestDaemonProcess$", "-test.timeout=5m")
		cmd.Env = append(os.Environ(), daemonEnv+"="+h.spawner.Name()+" "+dir+" "+h.socket, prebuilt+"="+bin)
		cmd.Stdout, cmd.Stderr = out, out
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		waitUntil(t, "the agent is up: "+out.String(), func() bool {
			select {
			case err := <-ended:
				t.Fatalf("the daemon process has ended: %v\n%s", err, out)
			default:
			}
			return strings.Contains(out.String(), "up")
		})
		if len(processesOf(dir)) < 4 {
			t.Fatalf("running processes %q, want at least 4", processesOf(dir))
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		waitUntil(t, "all processes have ended", func() bool { return len(processesOf(dir)) == 0 })
		<-ended
		// The next daemon removes the remaining resources.
		s := open(t, h.spawner.Name(), spawn.Config{Agent: agentProgram(t), Dir: filepath.Join(dir, "homes"), CgroupPrefix: "glasshouse-spawn-" + filepath.Base(dir)})
		if left, _ := os.ReadDir(filepath.Join(dir, "homes")); len(left) > 0 {
			t.Errorf("homes remain: %v", left)
		}
		if err := s.Probe(t.Context()); err != nil {
			t.Error(fmt.Errorf("Probe of the next daemon: %w", err))
		}
	})
}
