package jail

import (
	"errors"
	"os"
	"testing"

	"glasshouse/fault"
)

func TestAccount(t *testing.T) {
	for spec, want := range map[string][2]uint32{
		"": {}, "root": {}, "0": {}, "0:0": {}, "root:root": {}, "0:5": {0, 5}, "4711": {4711, 0}, "4711:12": {4711, 12},
		"nobody": {65534, 65534}, "65534": {65534, 65534}, "nobody:0": {65534, 0}, "daemon:root": {1, 0}, "4711:root": {4711, 0},
	} {
		if uid, gid, err := Account(t.Context(), os.Getpid(), spec); err != nil || [2]uint32{uid, gid} != want {
			t.Errorf("Account(%q) = %d, %d, %v; want %d", spec, uid, gid, err, want)
		}
	}
	for _, spec := range []string{"no-such-user", ":0", "root:no-such-group", "-1", "4294967295", "4294967296", "root:", "\n"} {
		if uid, gid, err := Account(t.Context(), os.Getpid(), spec); !errors.Is(err, fault.Invalid) {
			t.Errorf("Account(%q) = %d, %d, %v; want invalid", spec, uid, gid, err)
		}
	}
	if uid, gid, err := (SecretFile{UID: 5, GID: 6}).Host(IDRange{First: 1000, Count: 10}); uid != 1005 || gid != 1006 || err != nil {
		t.Errorf("Host = %d, %d, %v; want 1005, 1006", uid, gid, err)
	}
	for _, f := range []SecretFile{{UID: 10}, {GID: 10}} {
		if _, _, err := f.Host(IDRange{First: 1000, Count: 10}); err == nil {
			t.Errorf("Host of %d:%d = nil, want an error: the ids are out of range", f.UID, f.GID)
		}
	}
}
