package overlay

import (
	"bytes"
	"errors"
	"unicode/utf8"

	udiff "github.com/aymanbagabas/go-udiff"

	safetext "glasshouse/internal/text"
)

const (
	maxText  = 512 << 10 // bytes of a side that is compared line by line
	maxTexts = 4 << 20   // bytes of all sides that are compared in one call
	maxDiff  = 1 << 20   // bytes of one unified diff
)

// texts adds text diffs to the changes after a path, in order, until enough data was read. It
// marks the remaining changes.
func (d *differ) texts(after string) error {
	read := 0
	for i := range d.found {
		f := &d.found[i]
		if f.Path <= after {
			continue
		}
		if read > maxTexts {
			f.NoDiff = Later
			continue
		}
		if err := d.ctx.Err(); err != nil {
			return err
		}
		n, err := f.text()
		if err != nil {
			return err
		}
		read += n
	}
	return nil
}

// text sets the text of one change and returns the number of bytes read.
func (f *finding) text() (read int, err error) {
	if f.Kind == "metadata" {
		return 0, nil
	}
	was, n, err1 := readSide(f.was)
	now, m, err2 := readSide(f.now)
	switch {
	case was == nil && now == nil:
		return 0, nil
	case errors.Is(err1, errTooLarge) || errors.Is(err2, errTooLarge):
		f.NoDiff = TooLarge
	case moving(err1) || moving(err2):
		f.NoDiff = Moving
	case err1 != nil || err2 != nil:
		return 0, errors.Join(err1, err2)
	case !isText(was) || !isText(now):
		f.NoDiff = Binary
	default:
		f.Diff, f.NoDiff = unified(f, string(was), string(now))
	}
	return n + m, nil
}

var errTooLarge = errors.New("too large to compare line by line")

// readSide reads one side of a change. It returns nil if that side does not exist or is not a
// regular file.
func readSide(f *fileAt) (data []byte, read int, err error) {
	if f == nil || !f.info.Mode().IsRegular() {
		return nil, 0, nil
	}
	if f.info.Size() > maxText {
		return []byte{}, 0, errTooLarge
	}
	// The size is from the lookup. The jail may have made the file larger since.
	data, err = f.read(maxText + 1)
	if err == nil && len(data) > maxText {
		err = errTooLarge
	}
	if data == nil {
		data = []byte{}
	}
	return data, len(data), err
}

func isText(b []byte) bool { return utf8.Valid(b) && bytes.IndexByte(b, 0) < 0 }

// unified returns the difference as diff -u and git write it.
func unified(f *finding, was, now string) (diff, why string) {
	from := f.Path
	if f.From != "" {
		from = f.From
	}
	a, b := safetext.FileName("a"+from), safetext.FileName("b"+f.Path)
	if f.was == nil || !f.was.info.Mode().IsRegular() {
		a = "/dev/null"
	}
	if f.now == nil || !f.now.info.Mode().IsRegular() {
		b = "/dev/null"
	}
	text, err := udiff.ToUnified(a, b, was, udiff.Lines(was, now), udiff.DefaultContextLines)
	if err != nil || len(text) > maxDiff {
		return "", TooLarge
	}
	return text, ""
}
