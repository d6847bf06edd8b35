package store_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"glasshouse/id"
	"glasshouse/store"
)

// TestMain runs the test binary as the process to be killed if requested.
func TestMain(m *testing.M) {
	if where := os.Getenv("STORE_TEST_WRITER"); where != "" {
		writeForever(where)
	}
	os.Exit(m.Run())
}

// writeForever stores jails and prints the id of each one after it is stored.
func writeForever(where string) {
	start, _ := strconv.Atoi(os.Getenv("STORE_TEST_START"))
	ctx := context.Background()
	s, err := store.Open(ctx, where)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for n := start; ; n++ {
		j := aJail(n)
		if err := s.Jails().Put(ctx, j); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(j.ID)
	}
}

func TestAcknowledgedWritesSurviveKill(t *testing.T) {
	where := filepath.Join(t.TempDir(), "g.db")
	want := map[id.Jail]bool{}
	for round := range 5 {
		for _, j := range killedWriter(t, where, round*10000, 20+30*round) {
			want[j] = true
		}
		for _, j := range all(t, open(t, where)) {
			delete(want, j.ID)
		}
		if len(want) > 0 {
			t.Fatalf("round %d: %d acknowledged jails are missing: %v", round, len(want), want)
		}
	}
}

// killedWriter runs a process that writes until it has acknowledged n jails, kills it during the
// next writes, and returns all acknowledged jails.
func killedWriter(t *testing.T, where string, start, n int) []id.Jail {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "STORE_TEST_WRITER="+where, "STORE_TEST_START="+strconv.Itoa(start))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var acknowledged []id.Jail
	lines := bufio.NewScanner(out)
	for lines.Scan() { // continue after the kill with the rest of the pipe
		acknowledged = append(acknowledged, id.Jail(lines.Text()))
		if len(acknowledged) == n {
			cmd.Process.Kill()
		}
	}
	if len(acknowledged) < n {
		t.Fatalf("the writer exited after %d jails", len(acknowledged))
	}
	return acknowledged
}
