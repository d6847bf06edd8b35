package event_test

import (
	"testing"

	"glasshouse/observe/event"
)

// The functions that process every event do not allocate.

func TestEncodingDoesNotAllocate(t *testing.T) {
	buf := make([]byte, 0, 4096)
	for _, r := range day {
		if n := testing.AllocsPerRun(100, func() { buf = r.e.AppendJSON(buf[:0]) }); n != 0 {
			t.Errorf("%s: %v allocations", r.name, n)
		}
	}
}

func TestMatchDoesNotAllocate(t *testing.T) {
	for _, q := range []string{
		"type:net,gap", "seq:1..9 pid:>3 -uid:0", "ret:EPERM dur:<1s", "comm:p*n,x name:*at", "path:/work,*.txt,/e*/*d", "-path:/x",
		"host:*.EXAMPLE.com,*a*p*", "src:[2001:db8::/32]:53,10.0.0.0/8 dst:::/0,1.2.3.4", "dst:10.0.0.1 port:443", "src:1.1.1.1,fe80::/10",
		"exe:/usr argv:\"git push\",x argv:h*s", "signal:KILL,SIG*", "flag:denied", "a,e,i,\" \"", "op:exec bytes:0 proto:t* dir:egress",
	} {
		f, err := event.ParseFilter(q)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range day {
			if n := testing.AllocsPerRun(100, func() { f.Match(r.e) }); n != 0 {
				t.Errorf("%s of %s: %v allocations", q, r.name, n)
			}
		}
	}
}
