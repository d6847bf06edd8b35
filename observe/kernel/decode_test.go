package kernel

import (
	"slices"
	"testing"
	"unsafe"
)

// argsRecord returns a record with a part of the arguments of an exec.
func argsRecord(ns uint64, text string) *traceRecord {
	b := make([]uint64, (fixedSize+len(text)+7)/8) // aligned
	r := (*traceRecord)(unsafe.Pointer(&b[0]))
	r.Kind, r.Ns, r.HostPid, r.Len, r.Size = kindArgs, ns, 7, uint16(len(text)), uint16(8*len(b))
	copy(payload(r), text)
	return r
}

// The arguments of an exec precede its record. If the ring has no room for the record, they belong
// to no event.
func TestArgumentsOfLostExecAreDiscarded(t *testing.T) {
	d := newDecoding(nil)
	d.addArgs(argsRecord(1, "lost\x00"))
	d.addArgs(argsRecord(2, "git\x00pu"))
	d.addArgs(argsRecord(2, "sh\x00"))
	if got, want := d.takeArgs(argsRecord(2, "")), []string{"git", "push"}; !slices.Equal(got, want) {
		t.Errorf("arguments = %q, want %q", got, want)
	}
	d.addArgs(argsRecord(3, "lost\x00"))
	if got := d.takeArgs(argsRecord(4, "")); len(got) > 0 {
		t.Errorf("arguments of an exec without any = %q", got)
	}
	if len(d.argv) > 0 {
		t.Errorf("%d arguments are left", len(d.argv))
	}
}
