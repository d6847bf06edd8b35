//go:build bench

package test_test

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/jail/backend/backendtest"
)

// TestBenchFleet measures a command in a jail, at the node with the jail and by way of another
// node, alternately.
func TestBenchFleet(t *testing.T) {
	f, one, two, _ := openFleet(t, fmt.Sprintf("snapshots: {memory_mb: 2048}\nrootfs: {allow: [%s], default: {dir: %q}}\n", benchRootfs(t).Dir, backendtest.Rootfs(t)))
	j := two.running(wire.CreateJail{})
	const n = 400
	local, forwarded := make([]time.Duration, 0, n), make([]time.Duration, 0, n)
	here, there := two.as(f.token, ""), one.as(f.token, "")
	for i := range n + 20 {
		began := time.Now()
		_, err := here.Exec(t.Context(), j.ID, wire.ExecRequest{Cmd: "true"})
		middle := time.Now()
		if err == nil {
			_, err = there.Exec(t.Context(), j.ID, wire.ExecRequest{Cmd: "true"})
		}
		if err != nil {
			t.Fatal(err)
		}
		if i >= 20 { // the first ones open connections
			local, forwarded = append(local, middle.Sub(began)), append(forwarded, time.Since(middle))
		}
	}
	slices.Sort(local)
	slices.Sort(forwarded)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	fmt.Printf("fleet: a command in a jail, p50 %.2f ms at its node, %.2f ms by way of another one, ratio %.2f; p95 %.2f and %.2f ms\n",
		ms(local[n/2]), ms(forwarded[n/2]), ms(forwarded[n/2])/ms(local[n/2]), ms(local[n*95/100]), ms(forwarded[n*95/100]))

	f.benchBranchesAndMoves(one, two)
}

// TestBenchIdleFleet counts the statements of daemons that do nothing.
func TestBenchIdleFleet(t *testing.T) {
	f, _, _, _ := openFleet(t, fmt.Sprintf("rootfs: {default: {dir: %q}}\n", backendtest.Rootfs(t)))
	db, err := sql.Open("pgx", f.db)
	if err != nil {
		f.Fatal(err)
	}
	defer db.Close()
	db.SetMaxIdleConns(-1) // the restart breaks connections
	exec := func(statement string) {
		f.Helper()
		if _, err := db.ExecContext(f.Context(), statement); err != nil {
			f.Fatal(err)
		}
	}
	exec("ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'")
	f.server.Restart(f, 0)
	exec("CREATE EXTENSION pg_stat_statements")
	time.Sleep(10 * time.Second)
	exec("SELECT pg_stat_statements_reset()")
	const seconds = 60
	time.Sleep(seconds * time.Second)
	rows, err := db.QueryContext(f.Context(), `SELECT query, calls, rows FROM pg_stat_statements
		WHERE query NOT LIKE '%pg_stat_statements%' ORDER BY calls DESC`)
	if err != nil {
		f.Fatal(err)
	}
	defer rows.Close()
	var calls, read int
	for rows.Next() {
		var query string
		var c, r int
		if err := rows.Scan(&query, &c, &r); err != nil {
			f.Fatal(err)
		}
		calls, read = calls+c, read+r
		f.Logf("%4d calls, %4d rows: %s", c, r, strings.Join(strings.Fields(query), " "))
	}
	if err := rows.Err(); err != nil {
		f.Fatal(err)
	}
	const daemons = 3
	fmt.Printf("fleet: an idle daemon executes %.2f statements per second, which return %.1f rows\n", float64(calls)/seconds/daemons, float64(read)/seconds/daemons)
}

// heapOf80MB is a program with 200 MB of memory. 80 MB of them cannot be compressed.
const heapOf80MB = `exec python3 -c '
import os, time
b = os.urandom(80 << 20) + bytes(120 << 20)
open("/tmp/up", "w").write("1")
while True: time.sleep(0.01)'`

// benchBranchesAndMoves measures branches of a snapshot at its node and at another one, which copies
// it first, and moves of a jail.
func (f *testFleet) benchBranchesAndMoves(one, two *fleetNode) {
	f.Helper()
	var origin, copied, again, moves times
	for range 5 {
		j := two.bench(heapOf80MB, true)
		s := two.snap(j, "")
		branch := func(n *fleetNode) time.Duration {
			f.Helper()
			began := time.Now()
			made, err := n.as(f.token, "").At(n.name).BranchSnapshot(f.Context(), s.ID, wire.Branch{Count: 1})
			took := time.Since(began)
			if err != nil || len(made.Jails) != 1 {
				f.Fatal(made.Errors, err)
			}
			if err := n.DeleteJail(f.Context(), made.Jails[0].ID); err != nil {
				f.Fatal(err)
			}
			return took
		}
		origin = append(origin, branch(two))
		copied = append(copied, branch(one))
		again = append(again, branch(one))
		time.Sleep(4 * time.Second) // the other node stores its copy two seconds after it was made
		began := time.Now()
		if _, err := two.as(f.token, "").MoveJail(f.Context(), j.ID, "one"); err != nil {
			f.Fatal(err)
		}
		moves = append(moves, time.Since(began))
		if err := one.DeleteJail(f.Context(), j.ID); err != nil {
			f.Fatal(err)
		}
		if err := two.DeleteSnapshot(f.Context(), s.ID); err != nil {
			f.Fatal(err)
		}
		// The other node removes its copy when it is asked for it.
		if _, err := two.as(f.token, "one").RestoreSnapshot(f.Context(), s.ID, wire.Overrides{}); !errors.Is(err, fault.NotFound) {
			f.Fatal(err)
		}
	}
	fmt.Printf("fleet: a branch of a jail with 200 MB of memory, at its node:            %s\n", origin)
	fmt.Printf("fleet: the same at another node, which copies the snapshot before:       %s\n", copied)
	fmt.Printf("fleet: the same at the other node, which has the copy:                   %s\n", again)
	fmt.Printf("fleet: a move of the jail to the other node:                             %s\n", moves)
}
