package cli

import (
	"testing"

	"glasshouse/api/wire"

	"github.com/google/go-cmp/cmp"
)

func TestObserveFlag(t *testing.T) {
	text := "syscalls=security,allow=read,ignore=futex+poll,sample=10,files=off,network=flows,packet_bytes=128,on_overload=count"
	want := wire.Observe{
		Syscalls: "security", Allow: []string{"read"}, Ignore: []string{"futex", "poll"}, Sample: 10,
		Files: "off", Network: "flows", Packets: 128, OnOverload: "count",
	}
	got, err := parseObserve(text)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	if back := observeText(got); back != text {
		t.Errorf("formatted again = %s", back)
	}
	if got, err := parseObserve(""); err != nil || observeText(got) != "" {
		t.Errorf("empty flag = %+v, %v", got, err)
	}
	for _, bad := range []string{"syscalls", "syscalls=", "=all", "colour=red", "sample=x", "packet_bytes=1k", "files=all,files=off", "files=all,"} {
		if got, err := parseObserve(bad); err == nil {
			t.Errorf("%q is accepted as %+v", bad, got)
		}
	}
}
