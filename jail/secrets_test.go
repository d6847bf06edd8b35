package jail

import (
	"errors"
	"os"
	"testing"

	"glasshouse/fault"
)

func TestAccountOf(t *testing.T) {
	for spec, want := range map[string]account{
		"": {}, "root": {}, "0": {}, "0:0": {}, "root:root": {}, "0:5": {0, 5}, "4711": {4711, 0}, "4711:12": {4711, 12},
		"nobody": {65534, 65534}, "65534": {65534, 65534}, "nobody:0": {65534, 0}, "daemon:root": {1, 0}, "4711:root": {4711, 0},
	} {
		if got, err := accountOf(t.Context(), os.Getpid(), spec); err != nil || got != want {
			t.Errorf("accountOf(%q) = %+v, %v; want %+v", spec, got, err, want)
		}
	}
	for _, spec := range []string{"no-such-user", ":0", "root:no-such-group", "-1", "4294967295", "4294967296", "root:", "\n"} {
		if got, err := accountOf(t.Context(), os.Getpid(), spec); !errors.Is(err, fault.Invalid) {
			t.Errorf("accountOf(%q) = %+v, %v; want invalid", spec, got, err)
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
