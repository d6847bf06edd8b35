package chain

import (
	"bytes"
	"fmt"
	"time"
)

// IsCanonical reports whether the scanner accepts b.
func IsCanonical(b []byte) bool { return scanValue(b, 0, 0) == len(b) && len(b) > 0 }

// Forge creates an export from entries with the key: it assigns numbers and hashes, and signs
// a checkpoint after every entries.
func Forge(entries []Entry, key *Key, every int) []byte {
	var out, notes bytes.Buffer
	var t tip
	for i := range entries {
		e := &entries[i]
		e.Seq, e.Prev = t.seq+1, t.hash
		if e.Time.IsZero() {
			e.Time = time.UnixMilli(1767225600000 + int64(i)).UTC()
		}
		out.Write(e.seal())
		out.WriteByte('\n')
		t.push(e.Hash, nil)
		if (i+1)%every == 0 || i == len(entries)-1 {
			cp, err := key.sign(Head{Size: t.seq, Root: t.root()})
			if err != nil {
				panic(err)
			}
			notes.Write(tailLine(CheckpointStart, cp.Note))
		}
	}
	out.Write(notes.Bytes())
	fmt.Fprintf(&out, "%s", tailLine(KeyStart, key.public.text))
	return out.Bytes()
}
