package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"

	"glasshouse/fault"
	safetext "glasshouse/internal/text"
	"glasshouse/jail"
	"glasshouse/policy/approval"
)

// maxPreview limits the size of a diff that is shown with an approval request, and maxCompared
// that of the compared files, in bytes.
const (
	maxPreview  = 40 << 10
	maxCompared = 1 << 20
)

// preview returns the diff that an invocation would make to a file now, as an
// approval.Preview. The file may change before the invocation is executed.
func (tc *toolCalls) preview(ctx context.Context, inv *invocation, name string, next func(before string) (string, error)) json.RawMessage {
	var f approval.Preview
	var err error
	f.Diff, err = tc.diff(ctx, inv, name, next)
	if err != nil {
		f.NoDiffReason = err.Error()
		if e, ok := errors.AsType[*fault.Error](err); ok && e.Err != nil {
			f.NoDiffReason = e.Err.Error() // without the operation and object
		}
	}
	doc, err := json.Marshal(f)
	if err != nil {
		return nil
	}
	return doc
}

// diff returns the unified diff that next makes to a file, or an error that says why it cannot
// be shown.
func (tc *toolCalls) diff(ctx context.Context, inv *invocation, name string, next func(before string) (string, error)) (string, error) {
	f, p, err := tc.files(ctx, inv, name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	from, before := safetext.FileName("a"+p), ""
	before, err = readFile(ctx, f, p)
	switch {
	case errors.Is(err, fault.NotFound):
		from = os.DevNull
	case err != nil:
		return "", err
	}
	after, err := next(before)
	if err != nil {
		return "", err
	}
	switch {
	case len(after) > maxCompared:
		return "", errors.New("the new file would be too large to compare")
	case !isText(before) || !isText(after):
		return "", errors.New("the file is not text")
	case before == after && from != os.DevNull:
		return "", errors.New("the file would not change")
	}
	text, err := udiff.ToUnified(from, safetext.FileName("b"+p), before, udiff.Lines(before, after), udiff.DefaultContextLines)
	switch {
	case err != nil:
		return "", fmt.Errorf("compare the texts of %s: %w", p, err)
	case len(text) > maxPreview:
		return "", errors.New("the diff is too large to show")
	case text == "":
		return "", errors.New("an empty file would be created")
	}
	return text, nil
}

// readFile reads a file of at most maxCompared bytes.
func readFile(ctx context.Context, f jail.Files, p string) (string, error) {
	r, info, err := f.Read(ctx, p, 0, maxCompared)
	if err != nil {
		return "", err
	}
	defer r.Close()
	if info.Size > maxCompared {
		return "", errors.New("the file is too large to compare")
	}
	var b bytes.Buffer
	if _, err := io.Copy(&b, io.LimitReader(r, maxCompared)); err != nil {
		return "", fmt.Errorf("read %s: %w", p, err)
	}
	return b.String(), nil
}

func isText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// previewWrite returns the diff of write_file.
func (tc *toolCalls) previewWrite(ctx context.Context, inv *invocation) json.RawMessage {
	in, err := inputOf[fileInput](inv.input)
	if err != nil {
		return nil // the tool rejects the input before an approval is requested
	}
	return tc.preview(ctx, inv, in.Path, func(string) (string, error) { return in.Text, nil })
}

// previewEdit returns the diff of edit_file.
func (tc *toolCalls) previewEdit(ctx context.Context, inv *invocation) json.RawMessage {
	in, err := inputOf[editInput](inv.input)
	if err != nil {
		return nil
	}
	return tc.preview(ctx, inv, in.Path, func(before string) (string, error) { return replaceText(before, in, inv.retry) })
}
