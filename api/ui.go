package api

import "net/http"

// UI is the web UI. *web.Site implements it.
type UI interface {
	http.Handler
	Has(r *http.Request) bool // whether the site has a resource for r
}

// pagePolicy is the Content-Security-Policy of API responses. They may contain untrusted data
// of a jail, so a browser must not render them as a page. Responses that are pages have their
// own policy.
const pagePolicy = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; sandbox"

// page reports whether the UI serves r. API routes take precedence, except that a browser that
// navigates to the address of an object receives the UI instead of JSON.
func (s *Server) page(r *http.Request, pattern string) bool {
	if s.o.UI == nil || !s.o.UI.Has(r) {
		return false
	}
	rt, taken := s.table[pattern]
	return !taken || r.Header.Get("Sec-Fetch-Dest") == "document" && rt.op.values && rt.role != ""
}

// uiPattern is the route of UI requests in the metrics.
const uiPattern = "GET /"
