package event_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"glasshouse/fault"
	"glasshouse/observe/event"
	"glasshouse/observe/syscalls"
)

func TestSelectionDefaults(t *testing.T) {
	everything := event.Selection{Syscalls: "all", Files: "all", Network: "packets", OnOverload: "throttle"}
	for _, tt := range []struct {
		name                string
		own, defaults, want event.Selection
	}{
		{"all defaults", event.Selection{}, event.Selection{}, everything},
		{"defaults of the daemon", event.Selection{},
			event.Selection{Syscalls: "security", Ignore: []string{"futex"}, Sample: 10, Packets: 128},
			event.Selection{Syscalls: "security", Ignore: []string{"futex"}, Sample: 10, Packets: 128, Files: "all", Network: "packets", OnOverload: "throttle"}},
		{"values of the jail take precedence",
			event.Selection{Syscalls: "all", Files: "off", Network: "flows", OnOverload: "count", Sample: 1, Packets: 64, Allow: []string{"read"}, Ignore: []string{}},
			event.Selection{Syscalls: "off", Files: "all", Network: "off", OnOverload: "throttle", Sample: 10, Packets: 128, Allow: []string{"bpf"}, Ignore: []string{"futex"}},
			event.Selection{Syscalls: "all", Files: "off", Network: "flows", OnOverload: "count", Sample: 1, Packets: 64, Allow: []string{"read"}, Ignore: []string{}}},
	} {
		got := tt.own.Defaults(tt.defaults)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want, +got)\n%s", tt.name, diff)
		}
		if err := got.Check("test", "", syscalls.Known); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func TestSelectionCheck(t *testing.T) {
	for _, tt := range []struct {
		s     event.Selection
		field string
		why   string
	}{
		{event.Selection{}, "", ""},
		{event.Selection{Allow: []string{"openat"}, Ignore: []string{"futex", "socketcall"}, Packets: 65535}, "", ""},
		{event.Selection{Syscalls: "some"}, "observe.syscalls", `"some" is not one of [all security off]`},
		{event.Selection{Files: "security"}, "observe.files", `"security" is not one of [all off]`},
		{event.Selection{Network: "ALL"}, "observe.network", `"ALL" is not one of [packets flows off]`},
		{event.Selection{OnOverload: "drop"}, "observe.on_overload", `"drop" is not one of [throttle count]`},
		{event.Selection{Allow: []string{"openat", "opeant"}, Ignore: []string{"x"}}, "observe.allow", `"opeant" is not a system call`},
		{event.Selection{Ignore: []string{""}}, "observe.ignore", `"" is not a system call`},
		{event.Selection{Sample: -1}, "observe.sample", "-1 is negative"},
		{event.Selection{Packets: 65536}, "observe.packet_bytes", "65536 is not between 0 and 65535"},
		{event.Selection{Packets: -1}, "observe.packet_bytes", "-1 is not between 0 and 65535"},
	} {
		err := tt.s.Check("test", "observe.", syscalls.Known)
		if tt.field == "" {
			if err != nil {
				t.Errorf("%+v: %v", tt.s, err)
			}
			continue
		}
		if !errors.Is(err, fault.Invalid) || fault.FieldOf(err) != tt.field || !strings.Contains(err.Error(), tt.why) {
			t.Errorf("%+v: %v, want %s: %s", tt.s, err, tt.field, tt.why)
		}
	}
}

func TestSecurityNamesAreValidAndUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range event.Security {
		if !syscalls.Known(name) {
			t.Errorf("%s is not a system call", name)
		}
		if seen[name] {
			t.Errorf("%s is listed twice", name)
		}
		seen[name] = true
	}
	for _, name := range []string{"execve", "openat", "connect", "setuid", "ptrace", "mount", "bpf", "unlinkat", "mprotect"} {
		if !seen[name] {
			t.Errorf("%s is not recorded", name)
		}
	}
	for _, name := range []string{"read", "write", "futex", "epoll_wait", "clock_gettime", "getpid"} {
		if slices.Contains(event.Security, name) {
			t.Errorf("%s is recorded, although it is frequent", name)
		}
	}
}
