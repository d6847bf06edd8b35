package netns

import "testing"

// FuzzPacket fuzzes the parser of rejected packets, whose content a jail controls.
func FuzzPacket(f *testing.F) {
	f.Add([]byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 2, 8, 8, 8, 8, 0x10, 0, 1, 0xbb})
	f.Add([]byte{0x4f, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 2, 8, 8, 8, 8})
	f.Add([]byte{0x60})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, ok := parsePacket(b)
		if !ok {
			return
		}
		if !p.Src.Addr().Is4() || !p.Dst.Addr().Is4() || p.Proto != b[9] {
			t.Errorf("parsePacket(%x) = %+v", b, p)
		}
	})
}
