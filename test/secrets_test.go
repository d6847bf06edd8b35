package test_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// forms are what a value may have become.
func forms(value string) [][]byte {
	h := hex.EncodeToString([]byte(value))
	all := [][]byte{[]byte(value), []byte(h), []byte(strings.ToUpper(h))}
	for shift := range 3 { // where it stands decides how base64 has it
		b := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", shift) + value))
		all = append(all, []byte(b[4:len(b)-4]))
	}
	return all
}

// finds reports whether data holds a value in any form, also compressed.
func finds(data []byte, words [][]byte) bool {
	for _, w := range words {
		if bytes.Contains(data, w) {
			return true
		}
	}
	return false
}

// zstdMagic is how what zstd has compressed begins.
var zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}

// unpacked returns what was compressed in data, wherever in it it begins.
func unpacked(d *zstd.Decoder, data []byte) []byte {
	var out []byte
	for {
		i := bytes.Index(data, zstdMagic)
		if i < 0 {
			return out
		}
		data = data[i:]
		var h zstd.Header
		if h.Decode(data) == nil {
			if err := d.Reset(bytes.NewReader(data)); err == nil {
				var b bytes.Buffer
				b.ReadFrom(d) // what follows it is no part of it, which is an error
				out = append(out, b.Bytes()...)
			}
		}
		data = data[len(zstdMagic):]
	}
}

// sighted returns where a value is, in any form: in files of the data directory, in
// memory that jails are kept in, in command lines and environments of processes,
// and in the daemon's log.
func (h *house) sighted(value string) []string {
	h.Helper()
	words := forms(value)
	d, err := zstd.NewReader(nil)
	if err != nil {
		h.Fatal(err)
	}
	defer d.Close()
	var where []string
	look := func(name string) {
		data, err := os.ReadFile(name)
		if err == nil && (finds(data, words) || finds(unpacked(d, data), words)) {
			where = append(where, name)
		}
	}
	err = filepath.WalkDir(h.data, func(name string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			look(name)
		}
		return nil
	})
	if err != nil {
		h.Fatal(err)
	}
	for _, pattern := range []string{"/proc/[0-9]*/cmdline", "/proc/[0-9]*/environ"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			h.Fatal(err)
		}
		for _, name := range names {
			if !strings.HasPrefix(name, fmt.Sprintf("/proc/%d/", os.Getpid())) {
				look(name)
			}
		}
	}
	if finds(h.log.Bytes(), words) {
		where = append(where, "the daemon's log")
	}
	return where
}
