package snapshot_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
	"glasshouse/observe/report"
)

func at[T id.Jail | id.Snapshot](x T) snapshot.Side {
	if strings.HasPrefix(string(x), "s-") {
		return snapshot.Side{Snapshot: id.Snapshot(x)}
	}
	return snapshot.Side{Jail: id.Jail(x)}
}

func (h *harness) compare(from, to snapshot.Side) *report.Comparison {
	h.t.Helper()
	c, err := h.keeper.Compare(h.t.Context(), from, to, snapshot.CompareOptions{Text: true})
	if err != nil {
		h.t.Fatal(err)
	}
	return c
}

// changesIn returns the file changes below /root, one per line.
func changesIn(f *report.FileChanges) string {
	var lines []string
	for _, c := range f.List {
		if path := string(c.Path); strings.HasPrefix(path, "/root") {
			line := c.Kind + " " + path
			if c.From != "" {
				line += " from " + string(c.From)
			}
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

func expect(t *testing.T, what, got, want string) {
	t.Helper()
	want = strings.TrimSpace(want)
	if got != want {
		t.Errorf("%s:\n%s\nwant\n%s", what, got, want)
	}
}

// commands returns the command lines of processes, one per line.
func commands(list []report.RunningProcess) string {
	var lines []string
	for _, r := range list {
		lines = append(lines, r.Command())
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// waitSleeping waits until a process with the given command line sleeps in a jail.
func (h *harness) waitSleeping(jid id.Jail, command string) {
	h.t.Helper()
	h.waitFor(command+" waits", func() bool {
		_, code := h.try(jid, `cd /proc; for p in [0-9]*; do [ "$(tr '\0' ' ' < $p/cmdline)" = "`+command+` " ] && read _ _ state _ < $p/stat && [ $state = S ] && exit 0; done; exit 1`)
		return code == 0
	})
}

func TestCompareBranchesWithSameFile(t *testing.T) {
	for _, how := range layerings {
		t.Run(string(how), func(t *testing.T) {
			h := newHarness(t)
			j := h.running()
			h.sh(j, "cd /root; echo everybody > both; echo x > moved; echo x > gone; echo x > mode; mkdir dir; echo kept > dir/kept")
			h.background(j, "exec sleep 1000")
			h.waitSleeping(j, "sleep 1000")
			s := h.take(j, how)
			kids := h.branch(s.ID, 2)
			h.sh(kids[0], "cd /root; echo first >> both; mv moved moved-by-first; rm gone")
			h.sh(kids[1], "cd /root; echo second >> both; chmod 600 mode; echo new > dir/new")
			h.background(kids[1], "exec sleep 2000")
			h.waitSleeping(kids[1], "sleep 2000")

			c := h.compare(at(kids[0]), at(kids[1]))
			expect(t, "from one branch to the other", changesIn(c.Files), `
modified /root/both
added /root/dir/new
added /root/gone
metadata /root/mode
renamed /root/moved from /root/moved-by-first`)
			i := slices.IndexFunc(c.Files.List, func(f report.FileChange) bool { return f.Path == "/root/both" })
			if i < 0 || !strings.Contains(string(c.Files.List[i].Diff), " everybody\n-first\n+second\n") {
				t.Errorf("diff of the file that both wrote: %+v", c.Files.List)
			}
			expect(t, "started", commands(c.Processes.Started), "sleep 2000")
			expect(t, "ended", commands(c.Processes.Ended), "")
			if c.Processes.Same < 2 {
				t.Errorf("%d processes in common, want at least init and sleep", c.Processes.Same)
			}
			back := h.compare(at(kids[1]), at(kids[0]))
			expect(t, "and back", changesIn(back.Files), `
modified /root/both
deleted /root/dir/new
deleted /root/gone
metadata /root/mode
renamed /root/moved-by-first from /root/moved`)
			expect(t, "ended, back", commands(back.Processes.Ended), "sleep 2000")
			if c := h.compare(at(s.ID), at(s.ID)); changesIn(c.Files) != "" || len(c.Processes.Started)+len(c.Processes.Ended)+len(c.Processes.Changed) > 0 {
				t.Errorf("a snapshot differs from itself: %+v", c)
			}
			changes, err := h.jails.Changes(t.Context(), kids[0], jail.ChangesOptions{Below: "/root"})
			if err != nil {
				t.Fatal(err)
			}
			var all []string
			for _, c := range changes {
				all = append(all, c.Kind+" "+c.Path)
			}
			expect(t, "against the root filesystem", strings.Join(all, "\n"), `
added /root/both
added /root/dir
added /root/dir/kept
added /root/mode
added /root/moved-by-first`)
		})
	}
}

func TestCompareJailWithItsSnapshot(t *testing.T) {
	for _, how := range layerings {
		t.Run(string(how), func(t *testing.T) {
			h := newHarness(t)
			j := h.running()
			h.install(j, "./testdata/serves", "/usr/bin/serves")
			st := h.talk(j, "/usr/bin/serves 127.0.0.1:7001", "")
			h.eventually(j, "cat /tmp/served", "start")
			sleeper := h.background(j, "exec sleep 1000")
			h.waitSleeping(j, "sleep 1000")
			h.sh(j, "echo one > /root/f")
			first := h.take(j, how)
			h.sh(j, "echo two > /root/f; mkdir /root/new; ln -s /etc /root/new/link")
			h.say(j, st, "127.0.0.1:7002")
			h.eventually(j, "cat /tmp/served", "127.0.0.1:7002")
			h.say(j, st, "/root/new")
			h.eventually(j, "cat /tmp/served", "/root/new")
			h.background(j, "exec sleep 3000")
			h.waitSleeping(j, "sleep 3000")
			if err := h.jails.Signal(t.Context(), j, sleeper.ID, "KILL"); err != nil {
				t.Fatal(err)
			}
			h.eventually(j, "grep -c ^1000$ /proc/[0-9]*/cmdline | grep -c :1$ || true", "0")
			check := func(what string, c *report.Comparison) {
				t.Helper()
				expect(t, what+": files", changesIn(c.Files), "modified /root/f\nadded /root/new\nadded /root/new/link")
				expect(t, what+": started", commands(c.Processes.Started), "sleep 3000")
				expect(t, what+": ended", commands(c.Processes.Ended), "sleep 1000")
				if len(c.Processes.Changed) != 1 || c.Processes.Changed[0].Was == nil || c.Processes.Changed[0].Cwd != "/root/new" || c.Processes.Changed[0].Was.Cwd != "/" {
					t.Errorf("%s: changed: %+v", what, c.Processes.Changed)
				}
				if o := c.Processes.Opened; len(o) != 1 || o[0].Local != "127.0.0.1:7002" || o[0].State != "listening" || o[0].Comm != "serves" {
					t.Errorf("%s: opened: %+v", what, o)
				}
				if len(c.Processes.Closed) != 0 {
					t.Errorf("%s: closed: %+v", what, c.Processes.Closed)
				}
				if c.Usage == nil || c.Usage.From == nil || c.Usage.From.Memory == 0 {
					t.Errorf("%s: usage: %+v", what, c.Usage)
				}
			}
			check("the jail now", h.compare(at(first.ID), at(j)))
			if _, err := h.jails.Pause(t.Context(), j); err != nil {
				t.Fatal(err)
			}
			check("the jail, paused", h.compare(at(first.ID), at(j)))
			if _, err := h.jails.Resume(t.Context(), j); err != nil {
				t.Fatal(err)
			}
			second := h.take(j, how)
			check("two snapshots", h.compare(at(first.ID), at(second.ID)))
			kid := h.branch(second.ID, 1)[0]
			check("a branch", h.compare(at(first.ID), at(kid)))

			if _, err := h.jails.Stop(t.Context(), kid, jail.StopOptions{}); err != nil {
				t.Fatal(err)
			}
			c := h.compare(at(second.ID), at(kid))
			expect(t, "a stopped branch: files", changesIn(c.Files), "")
			if c.Processes.Same != 0 || !strings.Contains(commands(c.Processes.Ended), "sleep 3000") || c.Usage.To != nil {
				t.Errorf("a stopped branch: %+v, %+v", c.Processes, c.Usage)
			}
			if _, err := h.jails.Stop(t.Context(), j, jail.StopOptions{}); err != nil {
				t.Fatal(err)
			}
			rest := h.take(j, "")
			c = h.compare(at(second.ID), at(rest.ID))
			expect(t, "a stopped snapshot: files", changesIn(c.Files), "")
			c = h.compare(at(rest.ID), at(j))
			expect(t, "a jail without a layer of its own", changesIn(c.Files), "")
			if _, err := h.keeper.Rewind(t.Context(), j, first.ID, jail.RewindOptions{}); err != nil {
				t.Fatal(err)
			}
			c = h.compare(at(first.ID), at(j))
			expect(t, "rewound: files", changesIn(c.Files), "")
			expect(t, "rewound: started", commands(c.Processes.Started), "")
			expect(t, "rewound: ended", commands(c.Processes.Ended), "")

			h.say(j, st, "connect")
			h.eventually(j, "cat /tmp/served", "connect")
			c = h.compare(at(first.ID), at(j))
			ends := 0
			for _, o := range c.Processes.Opened {
				if o.State == "established" && (o.Local == "127.0.0.1:7001" || o.Remote == "127.0.0.1:7001") {
					ends++
				}
			}
			if ends != 2 {
				t.Errorf("connected: opened: %+v", c.Processes.Opened)
			}
		})
	}
}

func TestProcessIdentityAfterSnapshotDeletion(t *testing.T) {
	h := newHarness(t)
	j := h.running()
	h.background(j, "exec sleep 1000")
	h.waitSleeping(j, "sleep 1000")
	var taken []snapshot.Snapshot
	for range 3 {
		taken = append(taken, h.take(j, jail.Stacked))
	}
	if err := h.keeper.Delete(t.Context(), taken[1].ID); err != nil {
		t.Fatal(err)
	}
	kid := h.branch(taken[2].ID, 1)[0]
	for _, when := range []string{"immediately", "after a restart"} {
		for _, to := range []snapshot.Side{at(taken[2].ID), at(j), at(kid)} {
			c := h.compare(at(taken[0].ID), to)
			if len(c.Processes.Started)+len(c.Processes.Ended) > 0 || c.Processes.Same < 2 {
				t.Errorf("%s, %v: %+v", when, to, c.Processes)
			}
		}
		h.reopen()
	}
}

func TestCompareWithHostileNames(t *testing.T) {
	h := newHarness(t)
	j := h.running()
	s := h.take(j, "")
	h.sh(j, `cd /root; touch "$(printf '\377\376')" "$(printf 'a\nb\033[2J')"; truncate -s 100G sparse 2>/dev/null || truncate -s 500M sparse
		head -c 3000000 /dev/zero | tr '\0' 'a' > long; mkfifo fifo; ln -s /proc/kcore link; seq 1 2000 | sed 's/^/f/' | (mkdir many; cd many; while read n; do : > $n; done)`)
	h.background(j, `exec -a "$(printf '\377\033[2J')" sleep 1000 || exec bash -c 'exec -a "$(printf "\377\033[2J")" sleep 1000'`)
	h.background(j, `exec bash -c 'exec -a "$(printf "\377\033[2J")" sleep 1234'`)
	h.eventually(j, "grep -lx 1234 /proc/[0-9]*/cmdline >/dev/null 2>&1; echo done", "done")
	c := h.compare(at(s.ID), at(j))
	for _, want := range []string{"added /root/\xff\xfe", "added /root/a\nb\x1b[2J", "added /root/fifo", "added /root/many/f2000"} {
		if !strings.Contains(changesIn(c.Files), want) {
			t.Errorf("change %q is not reported", want)
		}
	}
	var b strings.Builder
	if err := c.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	if s := b.String(); strings.Contains(s, "\x1b") || !utf8.ValidString(s) {
		t.Errorf("text = %q, want no escape characters and valid UTF-8", s)
	}
	second := h.take(j, "")
	if c := h.compare(at(second.ID), at(j)); len(c.Processes.Started)+len(c.Processes.Ended)+len(c.Processes.Changed) > 0 {
		t.Errorf("bytes are not preserved by encoding: %+v", c.Processes)
	}
}

func TestCompareUnrelatedJails(t *testing.T) {
	h := newHarness(t)
	a, b := h.running(), h.running()
	h.sh(a, "echo a > /root/a")
	c := h.compare(at(a), at(b))
	expect(t, "files of two jails on one root filesystem", changesIn(c.Files), "deleted /root/a")
	if c.Processes.Same != 0 {
		t.Errorf("two jails have %d processes in common", c.Processes.Same)
	}
	for _, e := range []snapshot.Side{at(id.NewJail()), at(id.NewSnapshot())} {
		if _, err := h.keeper.Compare(t.Context(), at(a), e, snapshot.CompareOptions{}); err == nil {
			t.Errorf("comparison with %v, which does not exist, succeeded", e)
		}
	}
}

func TestCompareImportedSnapshotWithOriginal(t *testing.T) {
	h := newHarness(t)
	h.tune = func(_ *jail.Config, c *snapshot.Config) {
		c.LowerLayers = func(context.Context, jail.Rootfs, string) ([]string, error) { return []string{h.root}, nil }
	}
	h.reopen()
	j := h.running()
	h.background(j, "exec sleep 1000")
	h.waitSleeping(j, "sleep 1000")
	h.sh(j, "echo x > /root/f")
	s := h.take(j, "")
	var parcel bytes.Buffer
	if err := h.keeper.Export(t.Context(), s.ID, &parcel); err != nil {
		t.Fatal(err)
	}
	other, err := h.keeper.Import(t.Context(), &parcel, snapshot.ImportOptions{Force: true})
	if err != nil {
		t.Fatal(err)
	}
	c := h.compare(at(s.ID), at(other.ID))
	expect(t, "files", changesIn(c.Files), "")
	if p := c.Processes; p.Unknown != "" || len(p.Started)+len(p.Ended)+len(p.Changed) > 0 || p.Same < 2 {
		t.Errorf("processes: %+v", p)
	}
}

func TestCompareCountsRecordsSinceFork(t *testing.T) {
	w := newWatched(t)
	watch := w.tune
	w.tune = func(j *jail.Config, c *snapshot.Config) {
		watch(j, c)
		c.Logs = w.o.Log
	}
	w.begin()
	j := w.running()
	w.sh(j, "echo before > /root/f")
	s := w.take(j, "")
	kids := w.branch(s.ID, 2)
	w.sh(kids[1], "for i in 1 2 3; do echo $i > /root/g; rm /root/g; done")
	again := w.take(kids[1], "")
	grandchild := w.branch(again.ID, 1)[0]
	w.sh(j, "true")

	c := w.compare(at(kids[0]), at(kids[1]))
	if e := c.Events; e.Since == nil || e.Since.Jail != j || e.Since.Seq != s.Seq || e.From.Unknown != "" || e.To.Total <= e.From.Total {
		t.Fatalf("two branches: %+v", c.Events)
	}
	whole := func(what string, n report.EventCount) {
		t.Helper()
		sum := int64(0)
		for _, k := range n.ByType {
			sum += k
		}
		if sum != n.Total || n.AtLeast {
			t.Errorf("%s: sum over types = %d of %d records, lower bound: %v", what, sum, n.Total, n.AtLeast)
		}
	}
	whole("the first branch", c.Events.From)
	whole("the second branch", c.Events.To)
	if n := c.Events.To.ByType; n["file"] < 3 || n["lineage"] < 1 || n["proc"] < 1 {
		t.Errorf("the second branch wrote files, but its counts are %v", n)
	}
	c = w.compare(at(s.ID), at(j))
	if e := c.Events; e.Since == nil || e.Since.Seq != s.Seq || e.From.Total != 0 || e.To.Total == 0 || e.To.ByType["proc"] == 0 {
		t.Errorf("a snapshot and its jail: %+v", c.Events)
	}
	c = w.compare(at(s.ID), at(again.ID))
	if e := c.Events; e.Since == nil || e.Since.Jail != j || e.From.Total != 0 || e.To.Total != int64(again.Seq-s.Seq) {
		t.Errorf("two snapshots of one jail: %+v, want %d", c.Events, again.Seq-s.Seq)
	}
	whole("two snapshots", c.Events.To)
	c = w.compare(at(grandchild), at(kids[1]))
	if e := c.Events; e.Since == nil || e.Since.Jail != kids[1] || e.Since.Seq != again.Seq {
		t.Errorf("a branch and its snapshot: %+v", c.Events)
	}
	// After deletion of the snapshot, the logs contain the fork position.
	if err := w.harness.keeper.Delete(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	c = w.compare(at(kids[0]), at(kids[1]))
	if e := c.Events; e.Since == nil || e.Since.Jail != j || e.Since.Seq != s.Seq {
		t.Errorf("two branches of a deleted snapshot: %+v", c.Events)
	}
	stranger := w.running()
	if e := w.compare(at(stranger), at(j)).Events; e.Since != nil || e.From.Total == 0 || e.To.Total == 0 {
		t.Errorf("two unrelated jails: %+v", e)
	}
}

// mounts returns the mounts below the directory of the harness.
func (h *harness) mounts() string {
	h.t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		h.t.Fatal(err)
	}
	var ours []string
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, h.dir) {
			ours = append(ours, line)
		}
	}
	return strings.Join(ours, "")
}

func TestCompareLeavesNoMounts(t *testing.T) {
	h := newHarness(t)
	source := t.TempDir()
	for name, text := range map[string]string{"kept": "kept\n", "edited": "one\n", "gone": "gone\n"} {
		if err := os.WriteFile(filepath.Join(source, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	j := h.running(func(s *jail.Spec) {
		s.Workspace, s.Trusted = &jail.Workspace{Source: source, Target: "/work"}, true
	})
	h.sh(j, "cd /work; echo two > edited; echo x > /root/f; mkdir dir; echo y > dir/y")
	s := h.take(j, jail.Stacked)
	kid := h.branch(s.ID, 1)[0]
	h.sh(kid, "cd /work; rm gone; mv dir/y dir/z; echo three >> edited; rm /root/f")
	work := func(from, to snapshot.Side) string {
		t.Helper()
		c := h.compare(from, to)
		var lines []string
		for _, f := range c.Workspace.List {
			lines = append(lines, strings.TrimSpace(f.Kind+" "+string(f.Path)+" "+string(f.From)))
		}
		return strings.Join(lines, "\n")
	}
	want := "renamed /dir/z /dir/y\nmodified /edited\ndeleted /gone"
	expect(t, "the workspace of a branch", work(at(s.ID), at(kid)), want)
	expect(t, "the workspace of both", work(at(j), at(kid)), want)
	changes, err := h.jails.Changes(t.Context(), kid, jail.ChangesOptions{Workspace: true})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, c := range changes {
		all = append(all, c.Kind+" "+c.Path)
	}
	expect(t, "against the host's directory", strings.Join(all, "\n"), "added /dir\nadded /dir/z\nmodified /edited\ndeleted /gone")

	for _, jid := range []id.Jail{j, kid} {
		if _, err := h.jails.Stop(t.Context(), jid, jail.StopOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	mounts := h.mounts()
	for range 5 { // the compared jails can be started immediately afterwards
		expect(t, "stopped", work(at(j), at(kid)), want)
		expect(t, "stopped: files", changesIn(h.compare(at(j), at(kid)).Files), "deleted /root/f")
		if now := h.mounts(); now != mounts {
			t.Fatalf("mounts after the comparison:\n%s\nbefore:\n%s", now, mounts)
		}
		if _, err := h.jails.Start(t.Context(), kid); err != nil {
			t.Fatal(err)
		}
		if _, err := h.jails.Stop(t.Context(), kid, jail.StopOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	layer := s.Jail.Sealed[0]
	if err := os.Rename(layer, layer+".away"); err != nil {
		t.Fatal(err)
	}
	if c, err := h.keeper.Compare(t.Context(), at(s.ID), at(kid), snapshot.CompareOptions{}); err == nil {
		t.Errorf("jails without a layer differ in %+v", c.Files)
	}
	if now := h.mounts(); now != mounts {
		t.Errorf("mounts after an error:\n%s", now)
	}
	if err := os.Rename(layer+".away", layer); err != nil {
		t.Fatal(err)
	}
}
