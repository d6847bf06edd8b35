package api

import (
	"fmt"
	"html"
	"net/http"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/internal/text"
)

// documentHandler serves the metrics and the documentation of the API.
type documentHandler struct {
	metrics *metrics
	openapi func() ([]byte, error)
}

type metricsQuery struct {
	Node string `query:"node" description:"Name or ID of the node of the fleet, as in the header Glasshouse-Node. Default: the daemon that answers."`
}

func (h *documentHandler) getMetrics(w http.ResponseWriter, r *http.Request, _ metricsQuery) error {
	h.metrics.handler().ServeHTTP(w, r)
	return nil
}

func (h *documentHandler) getOpenApi(w http.ResponseWriter, _ *http.Request, _ none) error {
	text, err := h.openapi()
	if err != nil {
		return fmt.Errorf("generate the OpenAPI document: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	_, err = w.Write(text)
	return err
}

type problemPath struct {
	Problem string `path:"problem"`
}

// getProblem serves the documentation page of a problem type.
func (h *documentHandler) getProblem(w http.ResponseWriter, _ *http.Request, p problemPath) error {
	name := wire.Problem{Type: wire.TypeOf(p.Problem)}.Kind()
	k, ok := kinds[fault.Kind(name)]
	status := fault.Kind(name).Status()
	switch name {
	case internalKind:
		k, ok = kinds[""], true
	case methodKind:
		k, ok, status = methodInfo, true, http.StatusMethodNotAllowed
	}
	if !ok || p.Problem == "" {
		return fault.Newf(fault.NotFound, "api.getProblem", "", "%s is not a problem type", text.Visible(text.Clip(p.Problem, 64)))
	}
	w.Header().Set("Content-Type", htmlKind+"; charset=utf-8")
	_, err := fmt.Fprintf(w, `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>%[1]s</title>
<h1>%[1]s</h1>
<p>Problem type <code>%[2]s</code>, HTTP status %[3]d %[4]s.</p>
<p>%[5]s</p>
<p>More: <a href="/docs/how-to/troubleshooting/">troubleshooting</a>.</p>
</html>
`, html.EscapeString(k.title), html.EscapeString(wire.TypeOf(name)), status, http.StatusText(status), html.EscapeString(k.about))
	return err
}
