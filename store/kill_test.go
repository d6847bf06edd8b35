package store_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"testing"

	"glasshouse/id"
	"glasshouse/internal/killtest"
	"glasshouse/store"
)

func TestMain(m *testing.M) { killtest.Main(m, writeForever) }

// writeForever stores jails and prints the id of each one after it is stored.
func writeForever(args []string) error {
	start, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	ctx := context.Background()
	s, err := store.Open(ctx, args[0])
	if err != nil {
		return err
	}
	for n := start; ; n++ {
		j := aJail(n)
		if err := s.Jails().Put(ctx, j); err != nil {
			return err
		}
		fmt.Println(j.ID)
	}
}

func TestAcknowledgedWritesSurviveKill(t *testing.T) {
	where := filepath.Join(t.TempDir(), "g.db")
	want := map[id.Jail]bool{}
	for round := range 5 {
		killtest.Start(t, where, round*10000).KillAfter(20+30*round, 0, func(line string) { want[id.Jail(line)] = true })
		for _, j := range all(t, open(t, where)) {
			delete(want, j.ID)
		}
		if len(want) > 0 {
			t.Fatalf("round %d: %d acknowledged jails are missing: %v", round, len(want), want)
		}
	}
}
