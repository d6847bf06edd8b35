package e2b

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"glasshouse/fault"
)

// ReadBody decodes the JSON body of a request into v. A missing body leaves v as it is, and
// members that v does not have are ignored. A body of more than limit bytes is a
// fault.TooLarge, and one that is not JSON a fault.Invalid.
func ReadBody(w http.ResponseWriter, r *http.Request, v any, limit int64) error {
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, limit)).Decode(v)
	_, large := errors.AsType[*http.MaxBytesError](err)
	switch {
	case large:
		return fault.Newf(fault.TooLarge, "e2b", "", "the body is larger than %d bytes", limit)
	case err != nil && err != io.EOF:
		return invalid("Error when parsing request: %v", err)
	}
	return nil
}
