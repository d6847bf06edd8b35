package snapshot_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/snapshot"
)

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

func TestSnapshotRules(t *testing.T) {
	for _, c := range []struct {
		rule             string
		argv             []string
		command, program bool
	}{
		{"exec:git push", []string{"git", "push"}, true, true},
		{"exec:git push", []string{"/usr/bin/git", "push", "origin"}, true, true},
		{"exec:git push", []string{"git", "-C", "/work", "push"}, true, true},
		{"exec:git push", []string{"git", "pull"}, false, false},
		{"exec:git push", []string{"legit", "push"}, false, false},
		{"exec:git push", []string{"push", "git"}, false, false},
		{"exec:git push", []string{"sudo", "git", "push"}, true, true},
		{"exec:git push", []string{"timeout", "5", "git", "push"}, true, false}, // the exec of git itself is observed
		{"exec:git push", []string{"sh", "-c", "make && git push origin"}, true, false},
		{"exec:git push", []string{"sh", "-c", "(git push)"}, true, false},
		{"exec:git push", []string{"sh", "-c", "echo `git push`"}, true, false},
		{"exec:git push", []string{"sh", "-c", "git pull; echo push"}, false, false},
		{"exec:npm publish", []string{"node", "/usr/bin/npm", "publish"}, true, true},
		{"exec:/usr/bin/git", []string{"/usr/bin/git"}, true, true},
		{"exec:/usr/bin/git", []string{"git"}, false, false},
		{"exec:python3*", []string{"python3.12", "x.py"}, true, true},
		{"exec:*sql*", []string{"mysqldump"}, true, true},
		{"exec:rm -*r*", []string{"rm", "-fr", "/"}, true, true},
		{"exec:rm -*r*", []string{"rm", "file"}, false, false},
		{"exec:a*a", []string{"a"}, false, false},
		{"exec:rm", nil, false, false},
	} {
		if got := snapshot.InCommand(c.rule, c.argv...); got != c.command {
			t.Errorf("%s in the command %q: %v", c.rule, c.argv, got)
		}
		if got := snapshot.InProgram(c.rule, c.argv...); got != c.program {
			t.Errorf("%s in the program %q: %v", c.rule, c.argv, got)
		}
	}
}

func TestRetentionPolicy(t *testing.T) {
	at := func(day, hour, minute int) time.Time { return time.Date(2026, 3, day, hour, minute, 0, 0, time.UTC) }
	times := []time.Time{ // newest first
		at(10, 12, 50), at(10, 12, 40), at(10, 12, 30), at(10, 11, 59), at(10, 9, 1), at(9, 23, 59), at(9, 1, 0), at(7, 5, 5),
	}
	for _, c := range []struct {
		keep jail.Keep
		want []int
	}{
		{jail.Keep{}, nil},
		{jail.Keep{Last: 2}, []int{0, 1}},
		{jail.Keep{Last: 100}, []int{0, 1, 2, 3, 4, 5, 6, 7}},
		{jail.Keep{Hourly: 3}, []int{0, 3, 4}},
		{jail.Keep{Daily: 2}, []int{0, 5}},
		{jail.Keep{Daily: 100}, []int{0, 5, 7}},
		{jail.Keep{Last: 2, Hourly: 2, Daily: 3}, []int{0, 1, 3, 5, 7}},
	} {
		var want []time.Time
		for _, i := range c.want {
			want = append(want, times[i])
		}
		if got := snapshot.Kept(times, c.keep); !slices.Equal(got, want) {
			t.Errorf("%+v keeps %v, want %v", c.keep, got, want)
		}
	}
}

func TestCheckHost(t *testing.T) {
	here := snapshot.Host{Arch: "amd64", CPU: "one", Kernel: "6.12.3-foo"}
	for _, c := range []struct {
		from             snapshot.Host
		processes, force bool
		want             error
	}{
		{here, true, false, nil},
		{snapshot.Host{Arch: "arm64", CPU: "one", Kernel: "6.12"}, false, true, fault.Unsupported},
		{snapshot.Host{Arch: "amd64", CPU: "two", Kernel: "6.12"}, true, false, fault.Unsupported},
		{snapshot.Host{Arch: "amd64", CPU: "two", Kernel: "6.12"}, false, false, nil},
		{snapshot.Host{Arch: "amd64", CPU: "two", Kernel: "6.12"}, true, true, nil},
		{snapshot.Host{Arch: "amd64", CPU: "one", Kernel: "6.2"}, true, false, nil},
		{snapshot.Host{Arch: "amd64", CPU: "one", Kernel: "6.13"}, true, false, fault.Unsupported},
		{snapshot.Host{Arch: "amd64", CPU: "one", Kernel: "10.1"}, true, false, fault.Unsupported},
	} {
		if err := snapshot.Fits(c.from, here, c.processes, c.force); !errors.Is(err, c.want) || c.want != nil && fault.RemedyOf(err) == "" {
			t.Errorf("%+v, processes %v, force %v: %v, want %v with a remedy", c.from, c.processes, c.force, err, c.want)
		}
	}
}
