package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/internal/text"
)

// bodyTime is the time limit for receiving a JSON body.
const bodyTime = 30 * time.Second

// readBody decodes a JSON body into the value that into points to, and returns the raw body.
// If the type of into is none, the request must not have a body.
func readBody(w http.ResponseWriter, r *http.Request, into any) ([]byte, error) {
	rc := http.NewResponseController(w)
	if r.ContentLength != 0 {
		// Clear the deadline afterwards: net/http treats an expired one as a closed
		// connection.
		rc.SetReadDeadline(time.Now().Add(bodyTime))
		defer rc.SetReadDeadline(time.Time{})
	}
	limit := maxBody(w)
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if _, over := errors.AsType[*http.MaxBytesError](err); over {
		return nil, fault.Newf(fault.TooLarge, "api.readBody", "", "the body exceeds %d bytes", limit)
	}
	if err != nil {
		return nil, fault.Newf(fault.Invalid, "api.readBody", "", "cannot read the body: %v", err)
	}
	if _, ok := into.(*none); ok {
		if body := bytes.TrimSpace(raw); len(body) > 0 && string(body) != "{}" {
			return nil, fault.Newf(fault.Invalid, "api.readBody", "", "this request must not have a body")
		}
		return raw, nil
	}
	if d, ok := into.(interface{ Default() }); ok {
		d.Default()
	}
	if len(raw) == 0 && optional(reflect.TypeOf(into).Elem()) {
		return raw, nil
	}
	if err := checkMedia(r); err != nil {
		return nil, err
	}
	return raw, decodeStrict(raw, into)
}

// optional reports whether a body of type t may be omitted.
func optional(t reflect.Type) bool {
	switch t {
	case reflect.TypeFor[wire.TakeCheckpoint](), reflect.TypeFor[wire.ResumeRun](), reflect.TypeFor[wire.StopJail](), reflect.TypeFor[wire.TakeSnapshot](), reflect.TypeFor[wire.Overrides](), reflect.TypeFor[wire.Branch](), reflect.TypeFor[wire.MoveJail](), reflect.TypeFor[wire.CreateJail]():
		return true
	}
	return false
}

// checkMedia refuses media types that a plain HTML form could send from another site.
func checkMedia(r *http.Request) error {
	ct := r.Header.Get("Content-Type")
	media, params, err := mime.ParseMediaType(ct)
	charset := strings.ToLower(params["charset"])
	if ct == "" || err == nil && media == "application/json" && (charset == "" || charset == "utf-8") {
		return nil
	}
	return &fault.Error{Op: "api.checkMedia", Kind: fault.Invalid, Field: "Content-Type",
		Err: fmt.Errorf("%q is not JSON", text.Clip(ct, 64)), Remedy: "send Content-Type: application/json"}
}

// decodeStrict decodes raw, which must be exactly one JSON value, into the value that into
// points to. Unlike encoding/json it matches field names case-sensitively and refuses unknown
// and duplicate fields. Its errors contain the full path of the field.
func decodeStrict(raw []byte, into any) error {
	const op = "api.decodeStrict"
	if len(bytes.TrimSpace(raw)) == 0 {
		return fault.Newf(fault.Invalid, op, "", "the body is empty; want a JSON object")
	}
	if !utf8.Valid(raw) { // encoding/json would replace invalid bytes
		return fault.Newf(fault.Invalid, op, "", "the body is not UTF-8")
	}
	err := json.Unmarshal(raw, into)
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		field := e.Field
		if field == "" {
			return fault.Newf(fault.Invalid, op, "", "want a JSON object, got %s", e.Value)
		}
		return fault.Fieldf(op, text.Visible(text.Clip(field, 64)), "want %s, got %s", jsonType(e.Type), e.Value)
	}
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fault.Newf(fault.Invalid, op, "", "not JSON at byte %d: %v", e.Offset, err)
	}
	if err != nil { // an invalid time or base64 value
		return fault.Newf(fault.Invalid, op, "", "%v", err)
	}
	w := walker{dec: json.NewDecoder(bytes.NewReader(raw))}
	w.dec.UseNumber()
	return w.value(reflect.TypeOf(into).Elem(), "", true)
}

// jsonType returns the JSON name of the values that a Go type accepts.
func jsonType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Pointer:
		return jsonType(t.Elem())
	}
	return "a whole number in range"
}

// A walker traverses JSON that fits a type, and refuses unknown and duplicate fields.
type walker struct {
	dec    *json.Decoder
	filled bool // the next value must not be an empty string
}

func (w *walker) value(t reflect.Type, path string, top bool) error {
	tok, err := w.dec.Token()
	if err != nil {
		return err
	}
	if tok == nil && top {
		return fault.Newf(fault.Invalid, "api.value", "", "want a JSON object, got null")
	}
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	filled := w.filled
	w.filled = false
	if tok == "" && filled {
		return fault.Fieldf("api.value", text.Visible(text.Clip(path, 64)), "must not be empty: set a value, or omit the field")
	}
	switch tok {
	case json.Delim('{'):
		return w.object(t, path)
	case json.Delim('['):
		return w.list(t, path)
	}
	return nil
}

func (w *walker) object(t reflect.Type, path string) error {
	seen := map[string]bool{}
	for w.dec.More() {
		tok, err := w.dec.Token()
		if err != nil {
			return err
		}
		name := tok.(string)
		at := name
		if path != "" {
			at = path + "." + name
		}
		if seen[name] {
			return fault.Fieldf("api.object", text.Visible(text.Clip(at, 64)), "given twice")
		}
		seen[name] = true
		f, ok := member(t, name)
		if !ok {
			return fault.Fieldf("api.object", text.Visible(text.Clip(at, 64)), "unknown field")
		}
		ft := f.Type
		w.filled = f.Tag.Get("minLength") == "1"
		if err := w.value(ft, at, false); err != nil {
			return err
		}
	}
	_, err := w.dec.Token()
	return err
}

func (w *walker) list(t reflect.Type, path string) error {
	var elem reflect.Type
	if t != nil && t.Kind() == reflect.Slice {
		elem = t.Elem()
	}
	for i := 0; w.dec.More(); i++ {
		if err := w.value(elem, fmt.Sprintf("%s[%d]", path, i), false); err != nil {
			return err
		}
	}
	_, err := w.dec.Token()
	return err
}

// member returns the field of t with a JSON name. If t is not a struct, the result has only a
// type and no tag.
func member(t reflect.Type, name string) (reflect.StructField, bool) {
	if t == nil {
		return reflect.StructField{}, true
	}
	switch t.Kind() {
	case reflect.Map:
		return reflect.StructField{Type: t.Elem()}, true
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag == name {
				return f, true
			}
			if in, ok := member(f.Type, name); f.Anonymous && ok {
				return in, true
			}
		}
		return reflect.StructField{}, false
	}
	return reflect.StructField{}, true // an interface accepts any value
}
