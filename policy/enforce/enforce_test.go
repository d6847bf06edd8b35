package enforce_test

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"glasshouse/policy"
)

func TestAllowedCommandRunsUnchanged(t *testing.T) {
	forEach(t, func(t *testing.T, b *harness) {
		if got := b.mustRun("mkdir -p /work/a; echo one >/work/a/b; cat /work/a/b; echo two >/dev/null; echo three >&2 2>/dev/stderr"); got != "one\nthree" {
			t.Errorf("output = %q, want the lines one and three", got)
		}
		want := "bash -c 'mkdir -p /work/a; echo one >/work/a/b; cat /work/a/b; echo two >/dev/null; echo three >&2 2>/dev/stderr'|mkdir -p /work/a|cat /work/a/b"
		if got := strings.Join(b.judge.questions(policy.ActionRun), "|"); got != want {
			t.Errorf("judged commands:\n%s\nwant\n%s", got, want)
		}
		if got := b.judge.questions(policy.ActionEdit); fmt.Sprint(got) != "[. a a/b]" {
			t.Errorf("judged edits: got %q, want [. a a/b]", got)
		}
	})
}

func TestMissingFileReportsENOENT(t *testing.T) {
	forEach(t, func(t *testing.T, b *harness) {
		if _, err := b.tryRun("/no/such/program"); err == nil || !strings.Contains(err.Error(), "no such file") {
			t.Errorf("missing program: got error %v, want no such file", err)
		}
		if r := b.sh("/no/such; echo x >/no/such/file; rm /no/such; exit 7"); r.code != 7 || strings.Count(r.out, "No such file or directory") != 3 {
			t.Errorf("%+v", r)
		}
	})
}

// zeroNotes removes the build id of /tmp/ls and, with an argument, the offset of its section
// headers.
const zeroNotes = `python3 -S -c '
import struct, sys
f = open("/tmp/ls", "r+b")
h = f.read(64)
phoff, (size, n) = struct.unpack("<Q", h[32:40])[0], struct.unpack("<HH", h[54:58])
for i in range(n):
    f.seek(phoff + i * size)
    kind, _, off, _, _, length = struct.unpack("<IIQQQQ", f.read(40))
    if kind == 4:
        f.seek(off)
        f.write(bytes(length))
if len(sys.argv) > 1:
    f.seek(40)
    f.write(bytes([255] * 8))
f.close()'`

// runVariants are ways to run the program cat under another name.
var runVariants = map[string]string{
	"by its name":                `cat /etc/issue`,
	"by its path":                `/usr/bin/cat /etc/issue`,
	"by another path":            `cd /tmp; ../usr/./bin/cat /etc/issue`,
	"by a shell":                 `sh -c 'cat /etc/issue'`,
	"as another":                 `exec -a ls cat /etc/issue`,
	"as nothing":                 `exec -a '' cat /etc/issue`,
	"by a link":                  `ln -s /usr/bin/cat /tmp/ls; /tmp/ls /etc/issue`,
	"by two links":               `ln -s /usr/bin/cat /tmp/a; ln -s a /tmp/ls; /tmp/ls /etc/issue`,
	"by a hard link":             `ln /usr/bin/cat /tmp/ls && /tmp/ls /etc/issue`,
	"by a copy":                  `cp /usr/bin/cat /tmp/ls; /tmp/ls /etc/issue`,
	"by a longer copy":           `cp /usr/bin/cat /tmp/ls; echo >>/tmp/ls; /tmp/ls /etc/issue`,
	"by a copy without build id": `cp /usr/bin/cat /tmp/ls; ` + zeroNotes + `; /tmp/ls /etc/issue`,
	"by a copy without sections": `cp /usr/bin/cat /tmp/ls; ` + zeroNotes + ` sections; /tmp/ls /etc/issue`,
	"by a copy in the path":      `cp /usr/bin/cat /usr/bin/other; other /etc/issue; s=$?; rm /usr/bin/other; exit $s`,
	"by the loader":              `$(echo /lib64/ld-linux-x86-64.so.2 /lib/ld-linux-aarch64.so.1 | tr ' ' '\n' | while read l; do test -e $l && echo $l; done) /usr/bin/cat /etc/issue`,
	"by a copied loader":         `cp /lib64/ld-linux-x86-64.so.2 /tmp/ld-linux-x; /tmp/ld-linux-x --argv0 ls /usr/bin/cat /etc/issue`,
	"by a linked loader":         `ln -s /lib64/ld-linux-x86-64.so.2 /tmp/ls; /tmp/ls /usr/bin/cat /etc/issue`,
	"in memory":                  `attack memfd /usr/bin/cat /etc/issue`,
	"in named memory":            `attack memfd-path /usr/bin/cat /etc/issue`,
	"by a script":                `printf '#!/usr/bin/cat\n' >/tmp/ls; cat=1; chmod +x /tmp/ls; /tmp/ls`,
	"by two scripts":             `printf '#!/usr/bin/cat\n' >/tmp/a; printf '#!/tmp/a\n' >/tmp/ls; chmod +x /tmp/a /tmp/ls; /tmp/ls`,
	"by Python":                  `python3 -S -c 'import os; os.execv("/usr/bin/cat", ["ls", "/etc/issue"])'`,
	"by a descriptor":            `python3 -S -c 'import os; os.execve(os.open("/usr/bin/cat", os.O_RDONLY), ["ls", "/etc/issue"], {})'`,
	"relatively":                 `cd /usr/bin; ./cat /etc/issue`,
	"as a child":                 `(cat /etc/issue) & wait $!; exit $?`,
}

func TestDeniedProgramIsNotRunUnderAnyName(t *testing.T) {
	forEach(t, func(t *testing.T, b *harness) {
		for way, script := range runVariants {
			t.Run(way, func(t *testing.T) {
				b.judge.set(nil)
				b.sh("rm -f /tmp/*")
				if r := b.sh(script); strings.Contains(script, "ln /usr/bin") == false && r.code != 0 {
					t.Fatalf("allowed, but got %+v", r)
				}
				b.sh("rm -f /tmp/*")
				b.judge.set(denyCommand("cat"))
				r := b.sh(script)
				if r.code == 0 || strings.Contains(r.out, "a small tree") || strings.Contains(r.out, "#!") {
					t.Errorf("denied, but got %+v; judged: %q", r, b.judge.questions(policy.ActionRun))
				}
			})
		}
		if lies := b.mismatches(); len(lies) > 0 {
			t.Errorf("unexpected mismatches: %+v", lies)
		}
	})
}

func TestDeniedCallFailsWithEPERM(t *testing.T) {
	forEach(t, func(t *testing.T, b *harness) {
		b.judge.set(func(policy.Question) policy.Effect { return policy.Deny })
		r, err := b.tryRun("/bin/bash", "-c", "true")
		// On a busy host, the request does not wait for the decision, and the command ends instead.
		late := err == nil && r.code != 0 && strings.Contains(r.out, "was not started: it is not permitted")
		if !late && (err == nil || !strings.Contains(err.Error(), "not permitted")) {
			t.Errorf("denied command: got %+v and error %v, want not permitted", r, err)
		}
		b.judge.set(denyCommand("cat"))
		if r := b.sh("cat /etc/issue; exit 9"); r.code != 9 || !strings.Contains(r.out, "Operation not permitted") {
			t.Errorf("%+v", r)
		}
	})
}

// writeVariants are ways to change /kept/file without naming it directly.
var writeVariants = map[string]string{
	"by its name":          `echo attacked >/kept/file`,
	"by appending":         `echo attacked >>/kept/file`,
	"by a path with ..":    `echo attacked >/work/../kept/file`,
	"relatively":           `cd /work; echo attacked >../kept/file`,
	"by a link":            `ln -s /kept/file /work/a; echo attacked >/work/a`,
	"by a linked dir":      `ln -s /kept /work/d; echo attacked >/work/d/file`,
	"by a hard link":       `ln /kept/file /work/a && echo attacked >/work/a`,
	"by openat2":           `attack openat2 /kept/file`,
	"by creat":             `attack creat /kept/file`,
	"by truncating":        `attack open /kept/file ` + fmt.Sprint(unix.O_TRUNC),
	"for read and write":   `attack open /kept/file ` + fmt.Sprint(unix.O_RDWR),
	"by truncate":          `python3 -S -c 'import os; os.truncate("/kept/file", 0)'`,
	"by moving over it":    `echo attacked >/work/a; mv /work/a /kept/file`,
	"by moving it":         `mv /kept/file /work/a`,
	"by moving its dir":    `mv /kept /work/kept`,
	"by removing it":       `rm -f /kept/file; test ! -e /kept/file`,
	"by a descriptor":      `exec 3</kept/file; echo attacked >/proc/self/fd/3`,
	"by /dev/fd":           `exec 3</kept/file; echo attacked >/dev/fd/3`,
	"by another process's": `exec 3</kept/file; echo attacked >/proc/$$/fd/3`,
	"by its own number":    `attack parent-fd /kept/file`,
	"by its root":          `echo attacked >/proc/self/root/kept/file`,
	"by its directory":     `cd /kept; echo attacked >/proc/self/cwd/file`,
	"by a new file":        `echo attacked >/kept/other`,
	"by a dangling link":   `ln -s /kept/other /work/a; echo attacked >/work/a`,
	"by a directory":       `mkdir /kept/other`,
	"by a link in it":      `ln -s x /kept/other`,
	"by a pipe in it":      `mkfifo /kept/other`,
}

func TestProtectedFileIsNotChangedUnderAnyName(t *testing.T) {
	forEach(t, func(t *testing.T, b *harness) {
		for way, script := range writeVariants {
			t.Run(way, func(t *testing.T) {
				reset := func() {
					b.judge.set(nil)
					b.mustRun("rm -rf /work /kept; mkdir -p /work /kept; echo kept >/kept/file")
				}
				reset()
				if r := b.sh(script); r.code != 0 {
					t.Fatalf("allowed, but got %+v", r)
				}
				reset()
				b.judge.set(denyEdit("/kept"))
				r := b.sh(script)
				b.judge.set(nil)
				if now := b.sh("cat /kept/*; ls /kept"); r.code == 0 || now.out != "kept\nfile" {
					t.Errorf("denied, but got %+v; files: %+v", r, now)
				}
			})
		}
		if lies := b.mismatches(); len(lies) > 0 {
			t.Errorf("unexpected mismatches: %+v", lies)
		}
	})
}

func TestProcessesCannotAlterOtherProcesses(t *testing.T) {
	forEach(t, func(t *testing.T, b *harness) {
		for _, way := range []string{"ptrace", "mem"} {
			if r := b.run("/usr/bin/attack", way); r.code == 0 || !strings.Contains(r.out, "operation not permitted") {
				t.Errorf("%s: %+v", way, r)
			}
		}
	})
}

func TestQuestionDescribesTheCall(t *testing.T) {
	forEach(t, func(t *testing.T, b *harness) {
		b.mustRun("mkdir -p /work/sub; cd /work/sub; echo a >'a b'; echo c >/tmp/c; printf '#!/bin/sh\n:\n' >s; chmod +x s; ./s 'x y'")
		b.judge.mu.Lock()
		defer b.judge.mu.Unlock()
		var got []string
		for _, q := range b.judge.asked {
			if q.Subject.Jail != b.plan.ID || q.Attributes["observed"] != "true" {
				t.Errorf("%+v", q)
			}
			got = append(got, q.Action+" "+q.Resource+" in "+q.Attributes["cwd"]+" of "+q.Attributes["path"]+" by "+q.Attributes["exe"])
		}
		for _, want := range []string{
			"edit sub/a b in  of /work/sub/a b by /usr/bin/bash",
			"edit /tmp/c in  of /tmp/c by /usr/bin/bash",
			"external_directory /tmp/c in  of /tmp/c by /usr/bin/bash",
			"bash chmod +x s in /work/sub of  by /usr/bin/chmod",
			"bash ./s 'x y' in /work/sub of  by /work/sub/s",
			"bash sh ./s 'x y' in /work/sub of  by /usr/bin/sh",
		} {
			if !strings.Contains(strings.Join(got, "\n")+"\n", want+"\n") {
				t.Errorf("question missing: %s\ngot\n%s", want, strings.Join(got, "\n"))
			}
		}
	})
}

func TestJailCannotReachTheListener(t *testing.T) {
	forEach(t, func(t *testing.T, b *harness) {
		if r := b.run("/usr/bin/attack", "steal"); r.out != "nothing" {
			t.Errorf("%+v", r)
		}
	})
}

func TestPipesAndDevicesOpenUnchanged(t *testing.T) {
	forEach(t, func(t *testing.T, b *harness) {
		b.mustRun("mkdir -p /work; mkfifo /work/pipe")
		b.judge.set(nil)
		writer := b.background("echo through >/work/pipe; echo wrote")
		eventually(t, "the command is judged", func() bool { return len(b.judge.questions(policy.ActionRun)) > 0 })
		b.stop() // a pipe without a reader must not block Watch
		b.watch()
		t.Cleanup(b.stop)
		if got := b.mustRun("cat /work/pipe"); got != "through" {
			t.Errorf("read %q", got)
		}
		if got := b.result(writer); got.out != "wrote" {
			t.Errorf("%+v", got)
		}
		b.judge.set(nil)
		if r := b.run("/usr/bin/attack", "openat2-read", "/etc/issue"); r.code != 0 || len(b.judge.questions(policy.ActionEdit)) != 0 {
			t.Errorf("read: got %+v, judged edits %q, want none", r, b.judge.questions(policy.ActionEdit))
		}
		if got := b.mustRun("echo a >/dev/null; echo b >/dev/stdout; echo c | cat >/dev/fd/1"); got != "b\nc" || len(b.judge.questions(policy.ActionEdit)) != 0 {
			t.Errorf("output = %q, judged edits %q, want none", got, b.judge.questions(policy.ActionEdit))
		}
	})
}
