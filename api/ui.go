package api

import "net/http"

// UI is the site that is served beside the API. *web.Site is one.
type UI interface {
	http.Handler
	Has(r *http.Request) bool // whether there is something for r
}

// pagePolicy is for answers of the API: what a jail has said may be in them, and
// a browser is to make nothing of it. What is meant to be looked at has a policy
// of its own.
const pagePolicy = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; sandbox"

// page reports whether r is for the UI. The API goes first, with one exception:
// who opens the address of a thing in a browser wants to see the thing, not its
// JSON.
func (s *Server) page(r *http.Request, pattern string) bool {
	if s.o.UI == nil || !s.o.UI.Has(r) {
		return false
	}
	rt, taken := s.table[pattern]
	return !taken || r.Header.Get("Sec-Fetch-Dest") == "document" && rt.op.values && rt.role != ""
}

// uiPattern is what requests for the UI are counted as.
const uiPattern = "GET /"
