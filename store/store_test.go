package store_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"glasshouse/api/replay"
	"glasshouse/fault"
	"glasshouse/fleet"
	"glasshouse/id"
	"glasshouse/jail"
	"glasshouse/policy/access"
	"glasshouse/policy/approval"
	"glasshouse/store"
	"glasshouse/store/postgrestest"
	"glasshouse/store/storetest"
)

func TestSQLite(t *testing.T) {
	conform(t, func(t *testing.T) string { return filepath.Join(t.TempDir(), "glass house?#%.db") })
}

func TestPostgreSQL(t *testing.T) {
	server := postgrestest.Start(t)
	conform(t, func(t *testing.T) string { return server.URL(t) })
}

func TestMemory(t *testing.T) {
	s := open(t, "")
	put(t, s, aJail(1))
	if got := all(t, s); len(got) != 1 {
		t.Errorf("a database in memory holds %d jails, want 1", len(got))
	}
	if got := all(t, open(t, "")); len(got) != 0 {
		t.Errorf("another database in memory holds %d jails, want 0", len(got))
	}
}

// conform tests one database. fresh returns the location of a new, empty one.
func conform(t *testing.T, fresh func(t *testing.T) string) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, where string)
	}{
		{"JailsComeBackAsTheyWere", jailsComeBack},
		{"TwoJailsNeverShareHostIDs", hostIDsAreUnique},
		{"StrangeTextIsKept", strangeText},
		{"Tokens", tokens},
		{"LoginsComeBackAsTheyWere", loginsComeBack},
		{"BrowsersEndWithTheirLogins", browsersEnd},
		{"TemplatesComeBackAsTheyWere", templatesComeBack},
		{"FirstTokenOnce", firstToken},
		{"ReplayOfAFinishedRequest", replayFinished},
		{"ReplayIsTakenOverFromADeadProcess", replayTakenOver},
		{"ReplaysOfOneKeyAtOnce", replaysAtOnce},
		{"ParallelWriters", parallelWriters},
		{"OpenedManyTimesAtOnce", openedAtOnce},
		{"InstanceIDIsTheFirstOne", instanceID},
		{"SecretsComeBackAsTheyWere", secretsComeBack},
		{"SandboxesComeBackAsTheyWere", sandboxesComeBack},
		{"VolumesHaveNamesOfTheirOwn", volumesComeBack},
		{"NewerSchemaIsRefused", newerSchema},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, fresh(t)) })
	}
}

func open(t *testing.T, where string) *store.Store {
	t.Helper()
	if where != "" {
		if err := storetest.Create(where); err != nil {
			t.Fatal(err)
		}
	}
	s, err := store.Open(t.Context(), where)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 678_901_234, time.UTC)

func aJail(n int) jail.Jail {
	return jail.Jail{
		ID:      id.NewJail(),
		Spec:    jail.Spec{Name: fmt.Sprintf("jail %d", n), Labels: map[string]string{"n": fmt.Sprint(n)}, Backend: "oci", Runtime: "runc", Network: jail.Isolated, Limits: jail.DefaultLimits},
		State:   jail.Created,
		IDs:     jail.IDRange{First: 0x20000000 + uint32(n)*65536, Count: 65536},
		Created: epoch.Add(time.Duration(n)),
	}
}

func put(t *testing.T, s *store.Store, j jail.Jail) {
	t.Helper()
	if err := s.Jails().Put(t.Context(), j); err != nil {
		t.Fatalf("Put: %v", err)
	}
}

func all(t *testing.T, s *store.Store) []jail.Jail {
	t.Helper()
	list, err := s.Jails().All(t.Context())
	if err != nil {
		t.Fatalf("All: %v", err)
	}
	return list
}

func jailsComeBack(t *testing.T, where string) {
	s := open(t, where)
	var want []jail.Jail
	for n := range 5 { // stored in reverse; the order is by creation time in nanoseconds
		j := aJail(4 - n)
		put(t, s, j)
		want = append([]jail.Jail{j}, want...)
	}
	started := epoch.Add(time.Hour)
	want[2].State, want[2].Started = jail.Running, &started
	put(t, s, want[2])

	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, where)
	if diff := cmp.Diff(want, all(t, s)); diff != "" {
		t.Errorf("after reopening (-want +got):\n%s", diff)
	}
	got, err := s.Jails().Get(t.Context(), want[2].ID)
	if err != nil || got.State != jail.Running {
		t.Errorf("Get = %v, %v; want the running jail", got, err)
	}

	for range 2 { // deleting a missing jail is not an error
		if err := s.Jails().Delete(t.Context(), want[0].ID); err != nil {
			t.Fatalf("Delete: %v", err)
		}
	}
	if diff := cmp.Diff(want[1:], all(t, s)); diff != "" {
		t.Errorf("after Delete (-want +got):\n%s", diff)
	}
	if _, err := s.Jails().Get(t.Context(), want[0].ID); !errors.Is(err, fault.NotFound) {
		t.Errorf("Get of a deleted jail = %v, want not found", err)
	}
}

func hostIDsAreUnique(t *testing.T, where string) {
	s := open(t, where)
	first, second := aJail(1), aJail(2)
	second.IDs = first.IDs
	put(t, s, first)
	if err := s.Jails().Put(t.Context(), second); !errors.Is(err, fault.Conflict) {
		t.Fatalf("Put of a jail with another's host ids = %v, want conflict", err)
	}
	if err := s.Jails().Delete(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	put(t, s, second)

	for n := range 2 { // jails without host ids do not conflict
		j := aJail(10 + n)
		j.IDs = jail.IDRange{}
		put(t, s, j)
	}
}

func strangeText(t *testing.T, where string) {
	s := open(t, where)
	j := aJail(1)
	j.Spec.Name = "nul \x00, quote ', utf-8 \u202e 🏠"
	j.Spec.Env = map[string]string{"A": "\x00\x01\u2028"}
	put(t, s, j)
	if diff := cmp.Diff([]jail.Jail{j}, all(t, s)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	k := replay.Key{Scope: "\xff\x00", Key: "'; DROP TABLE jails; --\x00\xff"}
	begin(t, s, k, "d", nil)
	if err := s.Replays().Finish(t.Context(), k, replay.Response{Status: 201, Body: []byte(`{"a":"\u0000"}`)}); err != nil {
		t.Fatal(err)
	}
	begin(t, s, k, "d", &replay.Response{Status: 201, Body: []byte(`{"a":"\u0000"}`)})
	if _, err := s.Tokens().ByHash(t.Context(), "' OR 1=1 --"); !errors.Is(err, fault.NotFound) {
		t.Errorf("ByHash of an injection = %v, want not found", err)
	}
}

func tokens(t *testing.T, where string) {
	ctx := t.Context()
	s := open(t, where)
	ts := access.Tokens{Store: s.Tokens()}
	soon := time.Now().Add(time.Hour).UTC()
	var made []access.Token
	for i, role := range []access.Role{access.Admin, access.Operator, access.Viewer, access.Agent} {
		tok, secret, err := ts.Create(ctx, fmt.Sprint("n", i), role, &soon, access.Quota{})
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(tok.Hash, secret) || !strings.HasPrefix(secret, "gh_") {
			t.Fatalf("Create made secret %q, hash %q", secret, tok.Hash)
		}
		c, err := ts.Check(ctx, secret)
		if want := (access.Caller{Role: role, Name: tok.Name, Token: tok.ID}); err != nil || c != want {
			t.Errorf("Check = %+v, %v; want %+v", c, err, want)
		}
		made = append(made, tok)
	}
	list, err := ts.List(ctx)
	if diff := cmp.Diff(made, list); err != nil || diff != "" {
		t.Errorf("List: %v (-want +got):\n%s", err, diff)
	}
	jails, disk := 3, int64(50<<40)
	for _, c := range []access.QuotaChange{{Jails: &jails}, {Disk: &disk}} {
		made[1].Quota = c.Apply(made[1].Quota)
		if got, err := ts.SetQuota(ctx, made[1].ID, c); err != nil || !cmp.Equal(got, made[1]) {
			t.Errorf("SetQuota = %+v, %v, want %+v", got, err, made[1])
		}
	}
	if got, err := s.Tokens().ByID(ctx, made[1].ID); err != nil || !cmp.Equal(got, made[1]) {
		t.Errorf("ByID = %+v, %v, want %+v", got, err, made[1])
	}
	if _, err := s.Tokens().ByID(ctx, "t-unknown"); !errors.Is(err, fault.NotFound) {
		t.Errorf("ByID of an unknown token = %v, want not found", err)
	}
	if _, err := s.Tokens().SetQuota(ctx, "t-unknown", access.QuotaChange{}); !errors.Is(err, fault.NotFound) {
		t.Errorf("SetQuota of an unknown token = %v, want not found", err)
	}
	if err := s.Tokens().Add(ctx, made[0]); !errors.Is(err, fault.Conflict) {
		t.Errorf("Add of an existing token = %v, want conflict", err)
	}
	_, secret, err := ts.Create(ctx, "gone", access.Admin, nil, access.Quota{})
	if err != nil {
		t.Fatal(err)
	}
	list, err = ts.List(ctx)
	if err != nil || list[4].Expires != nil {
		t.Fatalf("List = %v, %v; want a fifth without expiry", list, err)
	}
	if err := ts.Revoke(ctx, list[4].ID); err != nil {
		t.Fatal(err)
	}
	if _, err := ts.Check(ctx, secret); !errors.Is(err, fault.Unauthenticated) {
		t.Errorf("Check of a revoked token = %v, want unauthenticated", err)
	}
	if err := ts.Revoke(ctx, list[4].ID); !errors.Is(err, fault.NotFound) {
		t.Errorf("second Revoke = %v, want not found", err)
	}
}

func firstToken(t *testing.T, where string) {
	ctx := t.Context()
	ts := access.Tokens{Store: open(t, where).Tokens()}
	file := filepath.Join(t.TempDir(), "token")
	if made, err := ts.First(ctx, file); err != nil || !made {
		t.Fatalf("First = %v, %v; want true", made, err)
	}
	secret, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if info, _ := os.Stat(file); info.Mode() != 0o600 {
		t.Errorf("the token's file has mode %v, want 0600", info.Mode())
	}
	if c, err := ts.Check(ctx, strings.TrimSpace(string(secret))); err != nil || c.Role != access.Admin {
		t.Errorf("Check of the first token = %+v, %v; want an admin", c, err)
	}
	if made, err := ts.First(ctx, file); err != nil || made {
		t.Errorf("First again = %v, %v; want false", made, err)
	}
	if again, _ := os.ReadFile(file); string(again) != string(secret) {
		t.Errorf("First again rewrote the token")
	}
}

// begin claims a key and expects the given response, or nil if the caller has claimed it.
func begin(t *testing.T, s *store.Store, k replay.Key, body string, want *replay.Response) {
	t.Helper()
	got, err := s.Replays().Begin(t.Context(), k, body)
	if err != nil {
		t.Fatalf("Begin: %v", err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("Begin (-want +got):\n%s", diff)
	}
}

func replayFinished(t *testing.T, where string) {
	ctx := t.Context()
	s := open(t, where)
	k := replay.Key{Scope: "t-1 POST /jails", Key: "k"}
	answer := replay.Response{Status: 201, ContentType: "application/json", Location: "/jails/j-1", Body: []byte(`{"id":"j-1"}`)}

	begin(t, s, k, "digest", nil)
	if _, err := s.Replays().Begin(ctx, k, "digest"); !errors.Is(err, fault.Conflict) {
		t.Errorf("Begin of a key in progress = %v, want conflict", err)
	}
	if _, err := s.Replays().Begin(ctx, k, "other"); !errors.Is(err, fault.Mismatch) {
		t.Errorf("Begin with another body = %v, want mismatch", err)
	}
	if err := s.Replays().Finish(ctx, k, answer); err != nil {
		t.Fatal(err)
	}
	if err := s.Replays().Abandon(ctx, k); err != nil { // no effect, because the response is stored
		t.Fatal(err)
	}
	begin(t, s, k, "digest", &answer)
	if _, err := s.Replays().Begin(ctx, k, "other"); !errors.Is(err, fault.Mismatch) {
		t.Errorf("Begin with another body = %v, want mismatch", err)
	}
	begin(t, s, replay.Key{Scope: "t-2 POST /jails", Key: "k"}, "other", nil)

	begin(t, s, replay.Key{Scope: "s", Key: "abandoned"}, "a", nil)
	if err := s.Replays().Abandon(ctx, replay.Key{Scope: "s", Key: "abandoned"}); err != nil {
		t.Fatal(err)
	}
	begin(t, s, replay.Key{Scope: "s", Key: "abandoned"}, "b", nil)
}

func replayTakenOver(t *testing.T, where string) {
	before, k := open(t, where), replay.Key{Scope: "s", Key: "k"}
	begin(t, before, k, "digest", nil)

	after := open(t, where)
	if _, err := after.Replays().Begin(t.Context(), k, "other"); !errors.Is(err, fault.Mismatch) {
		t.Errorf("Begin with another body = %v, want mismatch", err)
	}
	begin(t, after, k, "digest", nil)
	if err := before.Replays().Finish(t.Context(), k, replay.Response{Status: 200}); err != nil {
		t.Fatal(err)
	}
	if _, err := after.Replays().Begin(t.Context(), k, "digest"); !errors.Is(err, fault.Conflict) {
		t.Errorf("Begin after a late Finish of the previous owner = %v, want conflict", err)
	}
}

func replaysAtOnce(t *testing.T, where string) {
	s := open(t, where)
	var mu sync.Mutex
	won := 0
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			a, err := s.Replays().Begin(t.Context(), replay.Key{Scope: "s", Key: "k"}, "d")
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && a == nil:
				won++
			case !errors.Is(err, fault.Conflict):
				t.Errorf("Begin = %v, %v; want conflict", a, err)
			}
		})
	}
	wg.Wait()
	if won != 1 {
		t.Errorf("%d of 16 requests claimed the key, want 1", won)
	}
}

func parallelWriters(t *testing.T, where string) {
	s, other := open(t, where), open(t, where)
	var wg sync.WaitGroup
	for n := range 50 {
		wg.Go(func() {
			j := aJail(n)
			for _, s := range []*store.Store{s, other} {
				if err := s.Jails().Put(t.Context(), j); err != nil {
					t.Errorf("Put: %v", err)
				}
				if _, err := s.Jails().All(t.Context()); err != nil {
					t.Errorf("All: %v", err)
				}
			}
			if n%2 == 0 {
				if err := s.Jails().Delete(t.Context(), j.ID); err != nil {
					t.Errorf("Delete: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if got := len(all(t, s)); got != 25 {
		t.Errorf("%d jails remain, want 25", got)
	}
}

func openedAtOnce(t *testing.T, where string) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s, err := store.Open(t.Context(), where)
			if err != nil {
				t.Errorf("Open: %v", err)
				return
			}
			if err := errors.Join(s.Writable(t.Context()), s.Close(), s.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func instanceID(t *testing.T, where string) {
	s := open(t, where)
	for _, c := range []struct{ give, want string }{{"", ""}, {"first", "first"}, {"second", "first"}, {"", "first"}} {
		if got, err := s.InstanceID(t.Context(), c.give); err != nil || got != c.want {
			t.Errorf("InstanceID(%q) = %q, %v; want %q", c.give, got, err, c.want)
		}
	}
}

func newerSchema(t *testing.T, where string) {
	s := open(t, where)
	// A program of the next version adds something, which this one ignores.
	if err := s.MigrateFurther(t.Context(), "CREATE TABLE added (a TEXT);"); err != nil {
		t.Fatal(err)
	}
	again := open(t, where)
	put(t, again, aJail(1))
	// A later one removes what this one needs.
	if _, err := s.Exec(t.Context(), fmt.Sprintf("UPDATE schema_version SET needs = %d WHERE version = %d", store.Schema()+1, store.Schema()+1)); err != nil {
		t.Fatal(err)
	}
	_, err := store.Open(t.Context(), where)
	if !errors.Is(err, fault.Unsupported) || fault.RemedyOf(err) == "" {
		t.Errorf("Open of a schema that this program does not support = %v, want unsupported with a remedy", err)
	}
}

// A migration that older programs do not support waits until no node of the fleet has one.
func TestContractWaitsForOldNodes(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "g.db"))
	n := fleet.Node{ID: "old", Name: "box1", Version: "1.2.3", Host: "h", Nonce: "1"}
	if _, err := s.Nodes().Join(t.Context(), n, false, time.Minute); err != nil {
		t.Fatal(err)
	}
	remove := fmt.Sprintf("-- contract: %d\nDROP TABLE joins;", store.Schema())
	if _, err := s.Exec(t.Context(), fmt.Sprintf("UPDATE nodes SET schema = %d", store.Schema()-1)); err != nil {
		t.Fatal(err)
	}
	err := s.MigrateFurther(t.Context(), remove)
	if !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "box1 runs version 1.2.3") {
		t.Errorf("migration with an old node = %v, want a conflict that names it", err)
	}
	if _, err := s.Exec(t.Context(), "SELECT * FROM joins"); err != nil {
		t.Errorf("the refused migration has had an effect: %v", err)
	}
	if _, err := s.Nodes().Join(t.Context(), n, false, time.Minute); err != nil { // its new version
		t.Fatal(err)
	}
	if err := s.MigrateFurther(t.Context(), remove); err != nil {
		t.Errorf("migration after the update of all nodes = %v", err)
	}
	if _, err := s.Exec(t.Context(), "SELECT * FROM joins"); err == nil {
		t.Error("the migration has had no effect")
	}
}

// Daemons of the previous version use the database after a migration, unless it is a contract.
func TestMigrationsOnlyAdd(t *testing.T) {
	const first = 28 // earlier programs accept no newer schema
	adds := regexp.MustCompile(`(?s)^(CREATE INDEX |CREATE TABLE |INSERT INTO |UPDATE |ALTER TABLE \w+ ADD COLUMN \w+ \w+( NOT NULL DEFAULT .+)?;\s*$)`)
	store.Migrations(func(version int64, name, text string) bool {
		if version < first || strings.HasPrefix(text, "-- contract: ") {
			return true
		}
		for stmt := range store.Statements(text) {
			if !adds.MatchString(stmt) {
				t.Errorf("migration %d, %s, changes what older programs use, and is no contract: %s", version, name, stmt)
			}
		}
		return true
	})
}

func TestOpenRejectsInvalidLocation(t *testing.T) {
	for _, where := range []string{"mysql://host/db", "postgres://u:hunter2@[bad/db"} {
		_, err := store.Open(t.Context(), where)
		if !errors.Is(err, fault.Invalid) {
			t.Errorf("Open(%q) = %v, want invalid", where, err)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the message shows the password: %v", err)
		}
	}
	if _, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "no", "such", "dir.db")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Open in a missing directory = %v, want not exist", err)
	}
}

func TestDatabaseFileIsPrivate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "g.db")
	s := open(t, file)
	put(t, s, aJail(1))
	for _, suffix := range []string{"", "-wal", "-shm"} {
		info, err := os.Stat(file + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want 0600", info.Name(), info.Mode())
		}
	}
}

func TestFailedMigrationIsRolledBack(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "g.db"))
	err := s.MigrateFurther(t.Context(), "CREATE TABLE half (a TEXT);\nCREATE TABLE jails (a TEXT);\n")
	if err == nil {
		t.Fatal("a migration that creates a table twice returned no error")
	}
	if err := s.MigrateFurther(t.Context(), "-- a comment; not a statement\nCREATE TABLE half (\n\ta TEXT\n);"); err != nil {
		t.Errorf("the corrected migration: %v", err)
	}
}

func BenchmarkPutJail(b *testing.B) {
	s, err := store.Open(context.Background(), filepath.Join(b.TempDir(), "g.db"))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	j := aJail(1)
	for b.Loop() {
		if err := s.Jails().Put(b.Context(), j); err != nil {
			b.Fatal(err)
		}
	}
}

// Cancelling a read closes its connection, but must not delete the database.
// Package sql rolls a transaction back when its context ends. A later call does not know why.
func TestUpdateReturnsCauseOfRollback(t *testing.T) {
	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	cause := errors.New("the client is gone")
	for _, commit := range []bool{true, false} {
		ctx, cancel := context.WithCancelCause(t.Context())
		err := s.Update(ctx, func(tx *sql.Tx) error {
			cancel(cause)
			for {
				if _, err := tx.ExecContext(context.Background(), "SELECT 1"); errors.Is(err, sql.ErrTxDone) {
					if commit {
						return nil
					}
					return err
				}
			}
		})
		if !errors.Is(err, cause) {
			t.Errorf("commit %v: update = %v, want %v", commit, err, cause)
		}
	}
}

func TestMemoryDatabaseSurvivesCancelledRead(t *testing.T) {
	s := open(t, "")
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, err := s.Exec(ctx, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000000) SELECT count(*) FROM n")
		cancel()
		if err == nil {
			t.Fatal("the statement was not cancelled")
		}
		if _, err := s.Approvals().List(t.Context(), approval.Filter{}); err != nil {
			t.Error(err)
		}
	}
}
