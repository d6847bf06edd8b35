package acp

// Lines returns an iterator over the lines of c. The last line has the error.
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

// A Line is an exported frame.
type Line struct {
	At, Next int64
	Text     []byte
	Err      error
}
