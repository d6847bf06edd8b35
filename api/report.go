package api

import (
	"bytes"
	"fmt"
	"io"
	"net/http"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/text"
	"glasshouse/jail"
	"glasshouse/observe/report"
)

type reportParams struct {
	ID     id.Jail `path:"id"`
	Since  string  `query:"since" description:"Start of the reported time range: a time (RFC 3339), or a duration before now, such as 5m."`
	Until  string  `query:"until" description:"End of the reported time range."`
	Format string  `query:"format" enum:"json,html,md" description:"Response format, like the Accept header: application/json (the default), text/html or text/markdown."`
}

// reportPolicy restricts a report to a page without scripts, whose links to events may be
// followed. A report contains untrusted data of the jail.
var reportPolicy = report.ContentSecurityPolicy + "; sandbox allow-downloads"

// getReport responds with a report about a jail.
func (h *activityHandler) getReport(w http.ResponseWriter, r *http.Request, p reportParams) error {
	if _, err := readBody(w, r, &none{}); err != nil {
		return err
	}
	kind, err := p.kind(r)
	if err != nil {
		return err
	}
	j, err := h.jails.Get(r.Context(), p.ID)
	if err != nil {
		return err
	}
	var made *report.Report
	err = h.recordings.folded(r.Context(), p.ID, "", window{Since: p.Since, Until: p.Until}, func(src report.Events) (err error) {
		made, err = report.Make(r.Context(), src, reportOptions(j))
		return err
	})
	if err != nil {
		return err
	}
	var b bytes.Buffer // buffered, so that a rendering error does not leave a partial page
	var render func(io.Writer) error
	switch kind {
	case htmlKind:
		render = made.HTML
		w.Header().Set("Content-Security-Policy", reportPolicy)
	case markdownKind:
		render = made.Markdown
	default:
		return writeJSON(w, http.StatusOK, made)
	}
	if err := render(&b); err != nil {
		return fmt.Errorf("render the report: %w", err)
	}
	w.Header().Set("Content-Type", kind+"; charset=utf-8")
	_, err = w.Write(b.Bytes())
	return err
}

func (p reportParams) kind(r *http.Request) (string, error) {
	switch p.Format {
	case "json":
		return jsonKind, nil
	case "html":
		return htmlKind, nil
	case "md":
		return markdownKind, nil
	case "":
	default:
		return "", fault.Fieldf("api.kind", "format", "%q is not one of json, html, md", text.Clip(p.Format, 64))
	}
	for _, kind := range []string{jsonKind, htmlKind, markdownKind} {
		if accepts(r, kind) {
			return kind, nil
		}
	}
	return jsonKind, nil
}

// reportOptions returns the data about a jail for its report.
func reportOptions(j jail.Jail) report.Options {
	o := report.Options{Jail: j.ID, Selection: &j.Spec.Observe, Memory: j.Spec.Limits.MemoryMB << 20}
	if ws := j.Spec.Workspace; ws != nil {
		o.Workspace = append(o.Workspace, ws.Target)
	}
	for _, m := range j.Spec.Mounts {
		if m.Write {
			o.Workspace = append(o.Workspace, m.Target)
		}
	}
	return o
}
