package jail_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/observe/event"
)

// installParts gives a Manager an Observer, an Enforcer, Secrets and Commands, whose operations the
// script lists and fails.
func (s *newScript) installParts(cfg *jail.Config) {
	cfg.Observer, cfg.Enforcer = scriptedObserver{s}, scriptedEnforcer{s}
	cfg.Secrets, cfg.Commands = scriptedSecrets{s}, scriptedCommands{s}
}

type scriptedObserver struct{ s *newScript }

func (o scriptedObserver) Attach(context.Context, jail.Jail, jail.HostInfo) error {
	return o.s.step("attach")
}
func (o scriptedObserver) Select(context.Context, jail.Jail) error { return o.s.step("select") }
func (o scriptedObserver) Reattach(context.Context, jail.Jail, jail.HostInfo) error {
	return o.s.step("reattach")
}

func (o scriptedObserver) Mute(_ context.Context, _ id.Jail, on bool) error {
	if on {
		return o.s.step("mute")
	}
	return o.s.step("unmute")
}

func (o scriptedObserver) Lineage(_ context.Context, _ id.Jail, l jail.Lineage) (uint64, error) {
	return l.ParentSeq + 7, o.s.step("lineage " + l.Op)
}

func (o scriptedObserver) Mark(context.Context, id.Jail) (jail.Marker, error) {
	return jail.Marker{Seq: 3}, o.s.step("mark")
}

func (o scriptedObserver) Changed(_ context.Context, _ id.Jail, since jail.Marker) (bool, error) {
	return since.Seq != 3, o.s.step("changed")
}
func (o scriptedObserver) Detach(context.Context, id.Jail) error { return o.s.step("detach") }
func (o scriptedObserver) CloseLog(id.Jail) error                { return o.s.step("forget") }

type scriptedEnforcer struct{ s *newScript }

func (e scriptedEnforcer) Check(_ context.Context, s jail.Spec) (json.RawMessage, error) {
	return s.Policy, e.s.step("check")
}
func (e scriptedEnforcer) Env(jail.Jail) map[string]string {
	return map[string]string{"GOVERNED": "yes", "PATH": "/governed"}
}
func (e scriptedEnforcer) Apply(context.Context, jail.Jail, jail.HostInfo) error {
	return e.s.step("guard")
}
func (e scriptedEnforcer) SpecChanged(context.Context, jail.Jail) error { return e.s.step("adapt") }
func (e scriptedEnforcer) Resumed(_ context.Context, _ jail.Jail, same bool) error {
	return e.s.step(fmt.Sprintf("awoke same=%v", same))
}
func (e scriptedEnforcer) Release(id.Jail) { e.s.step("release") }
func (e scriptedEnforcer) StateChanged(j jail.Jail, from jail.State) {
	e.s.step(fmt.Sprintf("moved %s to %s", from, j.State))
}

type scriptedSecrets struct{ s *newScript }

func (c scriptedSecrets) Granted(_ context.Context, jid id.Jail) ([]jail.Secret, error) {
	return []jail.Secret{&password{name: "db", value: []byte("of " + string(jid))}}, c.s.step("secrets")
}
func (c scriptedSecrets) CopyGrantsToBranch(context.Context, id.Jail, id.Jail) error {
	return c.s.step("branched")
}
func (c scriptedSecrets) JailDeleted(context.Context, id.Jail) error { return c.s.step("gone") }

type password struct {
	name  string
	value []byte
}

func (p *password) Name() string  { return p.name }
func (p *password) Bytes() []byte { return p.value }
func (p *password) Zero()         { clear(p.value) }

type scriptedCommands struct{ s *newScript }

func (c scriptedCommands) Before(_ context.Context, _ id.Jail, argv []string) {
	c.s.step("before " + strings.Join(argv, " "))
}
func (c scriptedCommands) After(_ context.Context, _ id.Jail, argv []string) {
	c.s.step("after " + strings.Join(argv, " "))
}

// takeCalls returns the operations since the last call, except those named.
func (s *newScript) takeCalls(without ...string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return slices.DeleteFunc(calls, func(op string) bool { return slices.Contains(without, op) })
}

// visibleSecrets returns the secrets that are visible in an instance.
func (s *newScript) visibleSecrets(instance id.Jail) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown[instance]
}

func wantCalls(t *testing.T, what string, got []string, want string) {
	t.Helper()
	if g := strings.Join(got, ", "); g != want {
		t.Errorf("%s: calls =\n\t%s\nwant\n\t%s", what, g, want)
	}
}

// Observation and policy start before a jail runs, and end after its processes have ended.
func TestObserverAndEnforcerCoverWholeLifetime(t *testing.T) {
	h := newHarness(t)
	h.scriptParts = true
	m, s := h.scripted()
	ctx := t.Context()
	j, err := m.Create(ctx, jail.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	wantCalls(t, "Create", s.takeCalls("put"), "check, create, moved creating to created, attach, guard")
	if _, err = m.Start(ctx, j.ID); err != nil {
		t.Fatal(err)
	}
	wantCalls(t, "Start", s.takeCalls("put"), "secrets, show, moved created to running")
	if got, want := s.visibleSecrets(j.ID), []string{"db=of " + string(j.ID)}; !slices.Equal(got, want) {
		t.Errorf("visible secrets = %q, want %q", got, want)
	}
	if got := h.sh(m, j.ID, "echo $GOVERNED $PATH"); got != "yes /governed" {
		t.Errorf("environment = %q, want the enforcer's values over the defaults", got)
	}
	s.takeCalls()
	if _, err = m.Stop(ctx, j.ID, jail.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	wantCalls(t, "Stop", s.takeCalls("put"), "kill, release, detach, clean, moved running to stopped")
	if _, err = m.Start(ctx, j.ID); err != nil {
		t.Fatal(err)
	}
	wantCalls(t, "Start of a stopped jail", s.takeCalls("put"),
		"moved stopped to starting, create, attach, guard, secrets, show, moved starting to running")
	if err = m.Delete(ctx, j.ID); err != nil {
		t.Fatal(err)
	}
	wantCalls(t, "Delete", s.takeCalls("put"), "moved running to deleting, kill, release, detach, clean, forget, forget record, gone")
}

// forEachFailure runs f for each of ops with an error, and for the first of them also with a
// panic.
func forEachFailure(t *testing.T, ops []string, f func(t *testing.T, op, mode string)) {
	for n, op := range ops {
		for mode := range failureModes {
			if mode == "panic" && n > 0 {
				continue
			}
			t.Run(strings.ReplaceAll(op, " ", "-")+"-"+mode, func(t *testing.T) {
				t.Parallel()
				f(t, op, mode)
			})
		}
	}
}

func TestCreateCleansUpWhenAPartFails(t *testing.T) {
	forEachFailure(t, []string{"attach", "guard"}, func(t *testing.T, op, mode string) {
		h := newHarness(t)
		h.scriptParts = true
		m, s := h.scripted()
		s.fail(op, failureModes[mode])
		_, err := m.Create(t.Context(), jail.Spec{Start: true})
		wantFailure(t, mode, err)
		h.wantJails()
		h.wantNoInits()
	})
	for _, op := range []string{"check", "secrets", "show"} {
		t.Run(op, func(t *testing.T) {
			h := newHarness(t)
			h.scriptParts = true
			m, s := h.scripted()
			s.fail(op, failureModes["error"])
			_, err := m.Create(t.Context(), jail.Spec{Start: true})
			wantFailure(t, "error", err)
			h.wantJails()
			h.wantNoInits()
		})
	}
}

// wantNoInits fails the test if an init of an instance runs that is not in except.
func (h *harness) wantNoInits(except ...id.Jail) {
	h.Helper()
	for pid, of := range h.backend.pids.Range {
		if alive(pid.(int)) && !slices.Contains(except, of.(id.Jail)) {
			h.Errorf("init %d of %s is running, want ended", pid, of)
		}
	}
}

func TestStartFailureMarksJailFailedAndCanBeRetried(t *testing.T) {
	for _, op := range []string{"secrets", "show", "attach", "guard"} {
		t.Run(op, func(t *testing.T) {
			h := newHarness(t)
			h.scriptParts = true
			m, s := h.scripted()
			j := h.running(m)
			if _, err := m.Stop(t.Context(), j.ID, jail.StopOptions{}); err != nil {
				t.Fatal(err)
			}
			s.fail(op, failureModes["error"])
			_, err := m.Start(t.Context(), j.ID)
			wantFailure(t, "error", err)
			got, err := m.Get(t.Context(), j.ID)
			if err != nil || got.State != jail.Failed || !strings.Contains(got.Reason, errScripted.Error()) {
				t.Errorf("state = %s, reason %q, %v; want failed because of %q", got.State, got.Reason, err, errScripted)
			}
			h.wantNoInits()
			s.fail(op, nil)
			got, err = m.Start(t.Context(), j.ID)
			if err != nil || got.State != jail.Running {
				t.Errorf("second Start = %s, %v; want running", got.State, err)
			}
		})
	}
}

// If a part fails a checkpoint, the jail keeps running with its secrets, and its observers are
// unmuted.
func TestCheckpointFailureKeepsSecretsAndUnmutes(t *testing.T) {
	for how, ops := range map[jail.Layering][]string{
		jail.Copied:  {"secrets", "hide", "mute", "unmute", "lineage snapshot"},
		jail.Stacked: {"secrets", "hide", "mute", "lineage snapshot", "reattach", "guard"},
	} {
		for _, op := range ops {
			for mode, f := range failureModes {
				t.Run(fmt.Sprintf("%s-%s-%s", how, strings.ReplaceAll(op, " ", "-"), mode), func(t *testing.T) {
					h := newHarness(t)
					h.scriptParts = true
					m, s := h.scripted()
					j := h.running(m)
					s.takeCalls()
					s.fail(op, func() error { s.fail(op, nil); return f() })
					_, err := h.checkpoint(m, j.ID, how)
					wantFailure(t, mode, err)
					mutes := 0
					for _, call := range s.takeCalls() {
						switch call {
						case "mute":
							mutes++
						case "unmute":
							mutes--
						}
					}
					if op == "mute" { // the failed call does not count
						mutes--
					}
					if mutes != 0 {
						t.Errorf("mute calls without unmute = %d, want 0", mutes)
					}
					if got := s.visibleSecrets(j.ID); len(got) != 1 {
						t.Errorf("visible secrets = %q, want one", got)
					}
					if got := h.sh(m, j.ID, "echo fine"); got != "fine" {
						t.Errorf("output = %q, want fine", got)
					}
					h.wantJails(j.ID)
					h.wantNoInits(j.ID)
				})
			}
		}
	}
}

func TestCheckpointHidesSecretsAndMutesObservers(t *testing.T) {
	h := newHarness(t)
	h.scriptParts = true
	m, s := h.scripted()
	j := h.running(m)
	s.takeCalls()
	made, err := h.checkpoint(m, j.ID, jail.Copied)
	if err != nil {
		t.Fatal(err)
	}
	if made.Seq != 7 || made.Layering != jail.Copied {
		t.Errorf("checkpoint: event number %d, layering %s; want 7 and copied", made.Seq, made.Layering)
	}
	wantCalls(t, "Checkpoint", s.takeCalls("dump", "take"), // concurrent, so in any order
		"dumpable, copy, secrets, freeze, steady, hide, mute, lineage snapshot, unmute, show, thaw, end")
}

// Each part that is involved in a branch can fail it.
func TestBranchCleansUpWhenAPartFails(t *testing.T) {
	forEachFailure(t, []string{"lineage branch", "attach", "guard", "secrets", "show", "awoke same=true"}, func(t *testing.T, op, mode string) {
		h := newHarness(t)
		h.scriptParts = true
		m, s := h.scripted()
		img, of := h.image(m)
		s.takeCalls()
		s.fail(op, failureModes[mode])
		_, err := branch(m, t.Context(), img, false)
		wantFailure(t, mode, err)
		h.wantJails(of)
		h.wantNoInits(of)
		if calls := s.takeCalls(); !slices.Contains(calls, "branched") || !slices.Contains(calls, "gone") {
			t.Errorf("calls = %q, want branched and gone", calls)
		}
	})
	t.Run("branched", func(t *testing.T) {
		h := newHarness(t)
		h.scriptParts = true
		m, s := h.scripted()
		img, of := h.image(m)
		s.takeCalls()
		s.fail("branched", failureModes["error"])
		_, err := branch(m, t.Context(), img, false)
		wantFailure(t, "error", err)
		wantCalls(t, "Branch", s.takeCalls(), "branched, gone")
		h.wantJails(of)
	})
}

func TestCopyIsRemovedWhenClaimFails(t *testing.T) {
	forEachFailure(t, []string{"branched", "secrets", "show", "adapt", "awoke same=false"}, func(t *testing.T, op, mode string) {
		h := newHarness(t)
		h.scriptParts = true
		m, s := h.scripted()
		img, of := h.image(m)
		if _, err := branch(m, t.Context(), img, true); err != nil {
			t.Fatal(err)
		}
		s.fail(op, failureModes[mode])
		spec := img.Jail.Spec
		spec.Policy = json.RawMessage(`{"other":true}`)
		_, err := m.Branch(t.Context(), img, jail.BranchOptions{Spec: spec, Number: 2, Op: event.OpBranch})
		wantFailure(t, mode, err)
		h.wantJails(of)
		h.wantNoInits(of)
	})
}

func TestRewindFailureKeepsOldInstance(t *testing.T) {
	forEachFailure(t, []string{"reattach", "guard", "lineage rewind", "secrets", "show"}, func(t *testing.T, op, mode string) {
		h := newHarness(t)
		h.scriptParts = true
		m, s := h.scripted()
		img, of := h.image(m)
		before := h.sh(m, of, "echo $PPID")
		s.fail(op, func() error { s.fail(op, nil); return failureModes[mode]() })
		_, err := m.Rewind(t.Context(), of, img, jail.RewindOptions{})
		wantFailure(t, mode, err)
		if after := h.sh(m, of, "echo $PPID"); after != before {
			t.Errorf("pid of init = %s, want %s as before", after, before)
		}
		h.wantJails(of)
		h.wantNoInits(of)
	})
}

func TestRewindUsesFrozenCopy(t *testing.T) {
	h := newHarness(t)
	h.scriptParts = true
	m, s := h.scripted()
	img, of := h.image(m)
	copied, err := branch(m, t.Context(), img, true)
	if err != nil {
		t.Fatal(err)
	}
	s.takeCalls()
	got, err := m.Rewind(t.Context(), of, img, jail.RewindOptions{})
	if err != nil || got.State != jail.Running || got.InstanceID != copied.ID {
		t.Fatalf("Rewind = %s with instance %q, %v; want running with the copy %s", got.State, got.InstanceID, err, copied.ID)
	}
	if calls := s.takeCalls(); slices.Contains(calls, "restore") || !slices.Contains(calls, "reattach") || !slices.Contains(calls, "lineage rewind") {
		t.Errorf("calls = %q, want reattach and lineage, and no restore", calls)
	}
	if n := m.Copies(img.Snapshot); n != 0 {
		t.Errorf("Copies = %d, want 0", n)
	}
	if got := h.sh(m, of, "echo fine"); got != "fine" {
		t.Errorf("output = %q, want fine", got)
	}
	if _, err := m.Get(t.Context(), copied.ID); !errors.Is(err, fault.NotFound) {
		t.Errorf("Get of the copy = %v, want not found", err)
	}
}

// A copy that cannot be recorded as the instance of a jail is removed, and the jail is
// unchanged.
func TestRewindFailureToTakeCopyKeepsJail(t *testing.T) {
	for _, op := range []string{"forget", "put"} {
		t.Run(op, func(t *testing.T) {
			h := newHarness(t)
			h.scriptParts = true
			m, s := h.scripted()
			img, of := h.image(m)
			if _, err := branch(m, t.Context(), img, true); err != nil {
				t.Fatal(err)
			}
			s.fail(op, func() error { s.fail(op, nil); return errScripted })
			_, err := m.Rewind(t.Context(), of, img, jail.RewindOptions{})
			wantFailure(t, "error", err)
			if got := h.sh(m, of, "echo fine"); got != "fine" {
				t.Errorf("output = %q, want fine", got)
			}
			h.wantJails(of)
			h.wantNoInits(of)
		})
	}
}

func TestRefreshSecrets(t *testing.T) {
	h := newHarness(t)
	h.scriptParts = true
	m, s := h.scripted()
	ctx := t.Context()
	j, err := m.Create(ctx, jail.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	s.takeCalls()
	if err := m.RefreshSecrets(ctx, j.ID); err != nil {
		t.Errorf("RefreshSecrets of a jail that has not started = %v, want nil", err)
	}
	wantCalls(t, "before it starts", s.takeCalls(), "")
	if _, err := m.Start(ctx, j.ID); err != nil {
		t.Fatal(err)
	}
	s.takeCalls()
	if err := m.RefreshSecrets(ctx, j.ID); err != nil {
		t.Errorf("RefreshSecrets = %v, want nil", err)
	}
	wantCalls(t, "while it runs", s.takeCalls(), "secrets, show")
	s.fail("secrets", failureModes["error"]) // the other secrets are shown nevertheless
	if err := m.RefreshSecrets(ctx, j.ID); !errors.Is(err, errScripted) {
		t.Errorf("RefreshSecrets = %v, want %v", err, errScripted)
	}
	wantCalls(t, "without some", s.takeCalls(), "secrets, show")
	s.fail("secrets", nil)
	m.Close()
	s.takeCalls()
	m = h.scriptedManager(s) // refreshes them, because some may have been revoked
	wantCalls(t, "the next daemon", s.takeCalls(), "open, thaw, attach, guard, secrets, show")
	if err := m.RefreshSecrets(ctx, "j-none"); !errors.Is(err, fault.NotFound) {
		t.Errorf("RefreshSecrets of an unknown jail = %v, want not found", err)
	}
}

// processBackend has no SecretHolder, so a jail with secrets does not start.
func TestCreateWithSecretsOnUnsupportedBackend(t *testing.T) {
	h := newHarness(t)
	s := &newScript{fails: map[string]func() error{}}
	h.configure = func(c *jail.Config) { c.Secrets = scriptedSecrets{s} }
	m := h.manager()
	_, err := m.Create(t.Context(), jail.Spec{Start: true})
	if !errors.Is(err, fault.Unsupported) || fault.RemedyOf(err) == "" {
		t.Errorf("Create = %v, want unsupported with a remedy", err)
	}
	h.wantJails()
}

func TestReplacePolicyIsUndoneOnError(t *testing.T) {
	h := newHarness(t)
	h.scriptParts = true
	m, s := h.scripted()
	j := h.running(m)
	to := func(v string) func(json.RawMessage) (json.RawMessage, error) {
		return func(json.RawMessage) (json.RawMessage, error) { return json.RawMessage(v), nil }
	}
	govern := func(want string) {
		t.Helper()
		all, err := h.db.Jails().All(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.Get(t.Context(), j.ID)
		if err != nil || string(got.Spec.Policy) != want || string(all[0].Spec.Policy) != want {
			t.Errorf("Govern = %s, recorded %s, %v; want %s", got.Spec.Policy, all[0].Spec.Policy, err, want)
		}
	}
	if _, err := m.ReplacePolicy(t.Context(), j.ID, to(`{"a":1}`)); err != nil {
		t.Fatal(err)
	}
	govern(`{"a":1}`)
	for _, op := range []string{"check", "adapt"} {
		s.fail(op, failureModes["error"])
		if _, err := m.ReplacePolicy(t.Context(), j.ID, to(`{"b":1}`)); !errors.Is(err, errScripted) {
			t.Errorf("Regovern = %v, want %v", err, errScripted)
		}
		s.fail(op, nil)
		govern(`{"a":1}`)
	}
	if _, err := m.ReplacePolicy(t.Context(), j.ID, func(json.RawMessage) (json.RawMessage, error) { return nil, errScripted }); !errors.Is(err, errScripted) {
		t.Errorf("Regovern = %v, want %v", err, errScripted)
	}
	govern(`{"a":1}`)
	if _, err := m.Stop(t.Context(), j.ID, jail.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	s.fail("adapt", failureModes["error"]) // not called, because the jail does not run
	if _, err := m.ReplacePolicy(t.Context(), j.ID, to(`{"c":1}`)); err != nil {
		t.Errorf("Regovern of a stopped jail = %v, want nil", err)
	}
	govern(`{"c":1}`)
}

func TestGovernWithoutEnforcerIsInvalid(t *testing.T) {
	h := newHarness(t)
	m := h.manager()
	_, err := m.Create(t.Context(), jail.Spec{Policy: json.RawMessage(`{}`)})
	if !errors.Is(err, fault.Invalid) || fault.FieldOf(err) != "govern" {
		t.Errorf("Create = %v, want invalid govern", err)
	}
}

// Changed returns false only for a jail that was marked in its present instance.
func TestChangedIsFalseOnlyAfterMark(t *testing.T) {
	h := newHarness(t)
	h.scriptParts = true
	m, s := h.scripted()
	j := h.running(m)
	changed := func(want bool) {
		t.Helper()
		if got, err := m.Changed(t.Context(), j.ID); err != nil || got != want {
			t.Errorf("Changed = %v, %v; want %v", got, err, want)
		}
	}
	take := func() {
		t.Helper()
		dir := t.TempDir()
		if _, err := m.Checkpoint(t.Context(), j.ID, jail.CheckpointOptions{
			Snapshot: id.NewSnapshot(), Images: dir, Layer: dir + "/layer", Layering: jail.Copied, SetMarker: true}); err != nil {
			t.Fatal(err)
		}
	}
	changed(true)
	s.fail("mark", failureModes["error"]) // does not fail the checkpoint
	take()
	changed(true)
	s.fail("mark", nil)
	take()
	changed(false)
	s.fail("changed", failureModes["error"])
	if _, err := m.Changed(t.Context(), j.ID); !errors.Is(err, errScripted) {
		t.Errorf("Changed = %v, want %v", err, errScripted)
	}
	s.fail("changed", nil)
	if _, err := h.checkpoint(m, j.ID, jail.Copied); err != nil { // without a mark
		t.Fatal(err)
	}
	changed(true)
	if got, err := m.Changed(t.Context(), "j-none"); !got || !errors.Is(err, fault.NotFound) {
		t.Errorf("Changed of an unknown jail = %v, %v; want true and not found", got, err)
	}
}

func TestCommandHooksRunForSnapshotPolicy(t *testing.T) {
	h := newHarness(t)
	h.scriptParts = true
	m, s := h.scripted()
	j, err := m.Create(t.Context(), jail.Spec{Start: true, Command: []string{"/bin/true"},
		Snapshots: jail.Snapshots{Before: []string{"exec:rm"}, After: jail.AfterExec}})
	if err != nil {
		t.Fatal(err)
	}
	after := make(chan struct{}, 1)
	s.fail("after /bin/sh -c exit 3", func() error { after <- struct{}{}; return nil })
	s.takeCalls()
	if _, _, err := m.Exec(t.Context(), j.ID, jail.ExecRequest{}, nil); !errors.Is(err, fault.Invalid) {
		t.Errorf("Exec of an empty request = %v, want invalid", err)
	}
	if _, _, err := m.Exec(t.Context(), j.ID, jail.ExecRequest{Cmd: "exit 3"}, nil); err != nil {
		t.Fatal(err)
	}
	select {
	case <-after:
	case <-time.After(time.Minute):
		t.Fatal("timeout: After was not called")
	}
	wantCalls(t, "Exec", s.takeCalls(), "before /bin/sh -c exit 3, after /bin/sh -c exit 3")
	if _, err := m.Pause(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	s.takeCalls()
	if _, _, err := m.Exec(t.Context(), j.ID, jail.ExecRequest{Cmd: "true"}, nil); !errors.Is(err, fault.Conflict) {
		t.Errorf("Exec in a paused jail = %v, want conflict", err)
	}
	wantCalls(t, "Exec in a paused jail", s.takeCalls(), "")
}
