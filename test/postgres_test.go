package test_test

import (
	"path/filepath"
	"strings"
	"testing"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/store/postgrestest"
)

func TestJailsSurviveTheDaemonWithPostgreSQL(t *testing.T) {
	server := postgrestest.Start(t)
	db := server.URL(t)
	h := open(t, "pool: {size: 1}\n", "--db", db, "--listen", "127.0.0.1:0")
	ctx := t.Context()
	running := h.running(wire.CreateJail{Name: "runs", Labels: map[string]string{"a": "b"}})
	x, err := h.Exec(ctx, running.ID, wire.ExecRequest{Cmd: "echo before; sleep 2; echo after", Detach: true})
	if err != nil {
		t.Fatal(err)
	}
	stopped := h.running(wire.CreateJail{Name: "stops"})
	h.sh(stopped.ID, "echo kept > /root/file")
	if _, err := h.StopJail(ctx, stopped.ID, 0); err != nil {
		t.Fatal(err)
	}
	token, err := h.CreateToken(ctx, wire.CreateToken{Name: "eyes", Role: "viewer"})
	if err != nil {
		t.Fatal(err)
	}

	h.kill()
	h.start()
	for _, want := range []wire.Jail{{ID: running.ID, State: "running"}, {ID: stopped.ID, State: "stopped"}} {
		if got, err := h.Jail(ctx, want.ID); err != nil || got.State != want.State {
			t.Errorf("state after a kill: %s, %v; want %s", got.State, err, want.State)
		}
	}
	s, err := h.Follow(ctx, running.ID, x.ID, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var said strings.Builder
	for out, err := s.Next(); err == nil; out, err = s.Next() {
		said.Write(out.Data)
	}
	if got := said.String(); got != "before\nafter\n" {
		t.Errorf("the command that ran during the restart wrote %q", got)
	}
	if got, err := client.Collect(h.Jails(ctx, client.JailFilter{Name: "runs"})); err != nil || len(got) != 1 {
		t.Errorf("jails of that name: %d, %v", len(got), err)
	}
	eyes, _ := client.New(client.Options{Addr: "http://" + h.tcpAddr(), Token: token.Token})
	if _, err := eyes.Jail(ctx, running.ID); err != nil {
		t.Errorf("token from before the restart: %v", err)
	}

	// A daemon of another data directory refuses this database, and a daemon of this directory
	// refuses another database.
	h.cmd.Process.Kill()
	h.cmd.Wait()
	h.cmd = nil
	for _, c := range []struct {
		name string
		args []string
	}{
		{"another directory", []string{"--data", shortTemp(t), "--db", db}},
		{"SQLite", []string{"--data", h.data}},
		{"another database", []string{"--data", h.data, "--db", server.URL(t)}},
	} {
		args := append([]string{"serve", "--config", h.config, "--listen", ""}, c.args...)
		if _, stderr, code := h.glasshouse(h.data, args...); code != 1 || !strings.Contains(stderr, "data directory") || !strings.Contains(stderr, "--db") {
			t.Errorf("%s: exit code %d, %q; want an error with a remedy", c.name, code, stderr)
		}
	}
	h.start()
	if got := h.sh(running.ID, "echo alive"); got != "alive" {
		t.Errorf("after the refused starts the jail prints %q, want alive", got)
	}
}

func TestUnreachableDatabase(t *testing.T) {
	h := open(t, "")
	none := filepath.Join(t.TempDir(), "none")
	_, stderr, code := h.glasshouse(h.data, "serve", "--data", shortTemp(t), "--listen", "", "--db", "postgres:///x?host="+none+"&password=hunter2")
	if code != 1 || !strings.Contains(stderr, none) || strings.Contains(stderr, "hunter2") {
		t.Errorf("exit code %d, %q; want the address without the password", code, stderr)
	}
}
