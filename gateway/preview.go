package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"

	"glasshouse/approval"
	"glasshouse/fault"
	safetext "glasshouse/internal/text"
	"glasshouse/jail"
)

// maxForeseen bounds the difference that a person is shown, and maxCompared the files
// of which one is made.
const (
	maxPreview = 40 << 10
	maxCompared = 1 << 20
)

// preview is the difference that a deed would make to a file if it were done now, as
// approval.Foreseen has it. The file may be another when it is done.
func (g *Gateway) preview(ctx context.Context, d *invocation, name string, next func(was string) (string, error)) json.RawMessage {
	var f approval.Foreseen
	var err error
	if f.Diff, err = g.diff(ctx, d, name, next); err != nil {
		f.NoDiff = err.Error()
		if e, ok := errors.AsType[*fault.Error](err); ok && e.Err != nil {
			f.NoDiff = e.Err.Error() // without where in the program it went wrong
		}
	}
	doc, err := json.Marshal(f)
	if err != nil {
		return nil
	}
	return doc
}

func (g *Gateway) diff(ctx context.Context, d *invocation, name string, next func(was string) (string, error)) (string, error) {
	f, p, err := g.files(ctx, d, name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	from, was := safetext.FileName("a"+p), ""
	switch was, err = readFile(ctx, f, p); {
	case errors.Is(err, fault.NotFound):
		from = os.DevNull
	case err != nil:
		return "", err
	}
	now, err := next(was)
	if err != nil {
		return "", err
	}
	switch {
	case len(now) > maxCompared:
		return "", errors.New("the file would be too large to be compared")
	case !isText(was) || !isText(now):
		return "", errors.New("it is not text")
	case was == now && from != os.DevNull:
		return "", errors.New("the file would stay as it is")
	}
	text, err := udiff.ToUnified(from, safetext.FileName("b"+p), was, udiff.Lines(was, now), udiff.DefaultContextLines)
	switch {
	case err != nil:
		return "", err
	case len(text) > maxPreview:
		return "", errors.New("too much would change to be shown")
	case text == "":
		return "", errors.New("an empty file would be made")
	}
	return text, nil
}

// readFile reads a file that is not too large to be compared.
func readFile(ctx context.Context, f jail.Files, p string) (string, error) {
	r, info, err := f.Read(ctx, p, 0, maxCompared)
	if err != nil {
		return "", err
	}
	defer r.Close()
	if info.Size > maxCompared {
		return "", errors.New("the file is too large to be compared")
	}
	var b bytes.Buffer
	_, err = io.Copy(&b, io.LimitReader(r, maxCompared))
	return b.String(), err
}

func isText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// previewWrite is what write_file would change.
func (g *Gateway) previewWrite(ctx context.Context, d *invocation) json.RawMessage {
	in, err := inputOf[fileInput](d.input)
	if err != nil {
		return nil // it is refused before anybody is asked
	}
	return g.preview(ctx, d, in.Path, func(string) (string, error) { return in.Text, nil })
}

// previewEdit is what edit_file would change.
func (g *Gateway) previewEdit(ctx context.Context, d *invocation) json.RawMessage {
	in, err := inputOf[editInput](d.input)
	if err != nil {
		return nil
	}
	return g.preview(ctx, d, in.Path, func(was string) (string, error) { return replaceText(was, in, d.retry) })
}
