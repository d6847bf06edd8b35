package jailinit_test

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"glasshouse/jail/init/control"
)

var attachLossless = control.AttachOptions{From: 0, Lossless: true, Follow: true}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

func itoa(n int) string { return strconv.Itoa(n) }

// children returns the children of a process, including zombies.
func children(t testing.TB, pid int) []string {
	t.Helper()
	var all []string
	tasks, err := os.ReadDir("/proc/" + itoa(pid) + "/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		b, err := os.ReadFile("/proc/" + itoa(pid) + "/task/" + task.Name() + "/children")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, strings.Fields(string(b))...)
	}
	return all
}

// statusField returns a number from /proc/PID/status, possibly in kB.
func statusField(t testing.TB, pid int, key string) int {
	t.Helper()
	b, err := os.ReadFile("/proc/" + itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			n, err := strconv.Atoi(strings.Fields(value)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s in /proc/%d/status", key, pid)
	return 0
}

func contextWithTimeout(t testing.TB, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}
