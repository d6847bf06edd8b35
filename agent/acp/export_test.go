package acp

// Lines calls yield with the lines of c, their places, and the error that comes with the
// last.
func Lines(c Conn) func(yield func(l Line) bool) {
	return func(yield func(l Line) bool) {
		f := framer{conn: c}
		for {
			l, err := f.frame()
			if !yield(Line{l.at, l.next, l.text, err}) || err != nil {
				return
			}
		}
	}
}

// A Line is a frame, for tests.
type Line struct {
	At, Next int64
	Text     []byte
	Err      error
}
