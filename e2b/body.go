package e2b

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"glasshouse/fault"
)

// ReadBody decodes the JSON body of a request into v. A missing body leaves v unchanged, and
// unknown members are ignored. It returns fault.TooLarge for a body of more than limit bytes and
// fault.Invalid for a body that is not JSON.
func ReadBody(w http.ResponseWriter, r *http.Request, v any, limit int64) error {
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, limit)).Decode(v)
	_, large := errors.AsType[*http.MaxBytesError](err)
	switch {
	case large:
		return fault.Newf(fault.TooLarge, "e2b.ReadBody", "", "the body is larger than %d bytes", limit)
	case err != nil && err != io.EOF:
		return invalid("Error when parsing request: %v", err)
	}
	return nil
}
