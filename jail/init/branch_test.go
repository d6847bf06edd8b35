package jailinit_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail/init/protocol"
)

// startBranch starts an init with a private /run and /etc/glasshouse.
func startBranch(t *testing.T) *jail {
	t.Helper()
	needRoot(t)
	const own = `mount -t tmpfs -o mode=755 run /run && mkdir /run/upper /run/work &&
mount -t overlay -o lowerdir=/etc,upperdir=/run/upper,workdir=/run/work etc /etc || exit
exec "$0"`
	j := startIn(t, t.TempDir(), exec.Command("unshare", "--fork", "--pid", "--mount-proc", "--kill-child", "sh", "-c", own, os.Args[0]))
	j.output("mkdir -p /etc/glasshouse/branch.d; mkdir -p -m 1777 /run/glasshouse/notify; chmod 1777 /run/glasshouse/notify")
	return j
}

// output runs a script that must succeed, and returns its output.
func (j *jail) output(script string) (stdout string) {
	j.t.Helper()
	out, stderr, s := j.run(sh(script))
	if s.Code != 0 || stderr != "" {
		j.t.Fatalf("%s: code %d, %s", script, s.Code, stderr)
	}
	return out
}

func testBranch() protocol.Branched {
	return protocol.Branched{Jail: id.NewJail(), Snapshot: id.NewSnapshot(), Hostname: "second", Branch: 2, Seed: bytes.Repeat([]byte{0xab, 1}, 16)}
}

func TestBranchHooksRunInOrder(t *testing.T) {
	j := startBranch(t)
	j.output(`cd /etc/glasshouse/branch.d
printf '#!/bin/sh\necho first $(id -u) $GLASSHOUSE_BRANCH >>/run/ran' >10-first
printf '#!/bin/sh\necho second $GLASSHOUSE_JAIL $GLASSHOUSE_SNAPSHOT $GLASSHOUSE_SEED >>/run/ran' >20-second
echo 'echo never >>/run/ran' >15-not-executable
mkdir 16-directory
chmod +x 10-first 20-second`)
	b := testBranch()
	if err := j.Branched(j.t.Context(), b); err != nil {
		t.Fatal(err)
	}
	seed := hex.EncodeToString(b.Seed)
	want := "first 0 2\nsecond " + string(b.Jail) + " " + string(b.Snapshot) + " " + seed + "\n"
	if ran := j.output("cat /run/ran"); ran != want {
		t.Errorf("hooks wrote %q, want %q", ran, want)
	}
}

func TestBranchSignals(t *testing.T) {
	j := startBranch(t)
	const listen = `trap 'echo usr1 >>/run/got-$1; mv /run/got-$1 /run/$1' USR1; trap 'echo hup >/run/$1' HUP
echo "$2" >/run/glasshouse/notify/$$; echo $$ >/run/$1.pid; while :; do sleep 0.1; done`
	j.output("chmod 1777 /run")
	for _, p := range []struct{ name, signal, user string }{
		{"default", "", ""}, {"hangup", "SIGHUP", "daemon"}, {"kill", "KILL", ""}, {"nonsense", "whatever", ""}, {"forged", "", "root"},
	} {
		e := protocol.Exec{ID: id.NewExec(), Argv: []string{"sh", "-c", listen, "sh", p.name, p.signal}, User: p.user}
		if _, _, err := j.Exec(j.t.Context(), e, nil); err != nil {
			t.Fatal(err)
		}
		j.output("until test -s /run/" + p.name + ".pid; do sleep 0.1; done")
	}
	// A user registers a signal for a process of another user.
	j.output(`pid=$(cat /run/forged.pid); rm /run/glasshouse/notify/$pid`)
	forge := sh(`echo TERM >/run/glasshouse/notify/$(cat /run/forged.pid)`)
	forge.User = "daemon"
	j.run(forge)
	// Links and FIFOs are rejected too.
	j.output(`cd /run/glasshouse/notify; echo TERM >1; echo TERM >../term; ln -s ../term 2; mkfifo 3; echo TERM >0004; echo USR1 >999999`)

	err := j.Branched(j.t.Context(), testBranch())
	if err == nil || fault.KindOf(err) != "" {
		t.Fatalf("Branched = %v, want the problems", err)
	}
	j.output("until test -s /run/default && test -s /run/hangup; do sleep 0.1; done")
	if got := j.output("cat /run/default /run/hangup"); got != "usr1\nhup\n" {
		t.Errorf("received signals = %q, want usr1 and hup", got)
	}
	for _, name := range []string{"kill", "nonsense", "forged"} {
		pid := strings.TrimSpace(j.output("cat /run/" + name + ".pid"))
		j.output("kill -0 " + pid)
		if !strings.Contains(err.Error(), "/notify/"+pid+":") {
			t.Errorf("problems without the %s registration: %v", name, err)
		}
	}
	for _, name := range []string{"1", "2", "3", "0004"} {
		if !strings.Contains(err.Error(), "/notify/"+name+":") {
			t.Errorf("problems without %s: %v", name, err)
		}
	}
	if strings.Contains(err.Error(), "999999") || strings.Contains(err.Error(), strings.TrimSpace(j.output("cat /run/default.pid"))+":") {
		t.Errorf("problems include a valid registration or an ended process: %v", err)
	}
}

func TestFailingHooksDoNotFailBranch(t *testing.T) {
	j := startBranch(t)
	j.output(`cd /etc/glasshouse/branch.d
printf '#!/bin/sh\necho why; exit 3' >1-fails
printf '#!/no/such\n' >2-cannot-run
printf '#!/bin/sh\nsleep 60' >3-hangs
printf '#!/bin/sh\necho ran >/run/ran' >4-runs
chmod +x *`)
	err := j.Branched(j.t.Context(), testBranch())
	if err == nil || fault.KindOf(err) != "" {
		t.Fatalf("Branched = %v, want the problems", err)
	}
	for _, want := range []string{"1-fails: exited with code 3", "2-cannot-run", "3-hangs: did not exit within"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("problems without %q: %v", want, err)
		}
	}
	if ran := j.output("cat /run/ran"); ran != "ran\n" {
		t.Errorf("output of the hook after failed ones = %q, want ran", ran)
	}
	all, listErr := j.Execs(j.t.Context())
	kept := 0
	for _, s := range all {
		if strings.HasPrefix(s.Argv[0], "/etc/glasshouse/") {
			kept++
		}
	}
	if listErr != nil || kept != 2 {
		t.Errorf("kept hooks = %d, %v; want the two that ran and failed", kept, listErr)
	}
}

func TestInvalidBranchRequests(t *testing.T) {
	j := start(t)
	for what, change := range map[string]func(*protocol.Branched){
		"no jail":       func(b *protocol.Branched) { b.Jail = "" },
		"no snapshot":   func(b *protocol.Branched) { b.Snapshot = "../x" },
		"a short seed":  func(b *protocol.Branched) { b.Seed = b.Seed[1:] },
		"branch -1":     func(b *protocol.Branched) { b.Branch = -1 },
		"a long name":   func(b *protocol.Branched) { b.Hostname = strings.Repeat("x", 65) },
		"an empty seed": func(b *protocol.Branched) { b.Seed = nil },
	} {
		b := testBranch()
		change(&b)
		if err := j.Branched(j.t.Context(), b); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s: %v, want invalid", what, err)
		}
	}
}
