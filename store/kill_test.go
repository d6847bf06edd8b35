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

// TestMain lets the test binary be the process that is killed.
func TestMain(m *testing.M) {
	if where := os.Getenv("STORE_TEST_WRITER"); where != "" {
		writeForever(where)
	}
	os.Exit(m.Run())
}

// writeForever records jails and says the id of each once it is recorded.
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

func TestWhatWasAcknowledgedSurvivesKill(t *testing.T) {
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
			t.Fatalf("round %d: %d acknowledged jails are gone: %v", round, len(want), want)
		}
	}
}

// killedWriter lets a process write until it has acknowledged n jails, kills it
// in the middle of the next ones, and returns all it acknowledged.
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
	for lines.Scan() { // on after the kill, to what the pipe still holds
		acknowledged = append(acknowledged, id.Jail(lines.Text()))
		if len(acknowledged) == n {
			cmd.Process.Kill()
		}
	}
	if len(acknowledged) < n {
		t.Fatalf("the writer ended after %d jails", len(acknowledged))
	}
	return acknowledged
}
