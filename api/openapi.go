package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"reflect"
	"strings"

	"github.com/swaggest/jsonschema-go"
	"github.com/swaggest/openapi-go"
	"github.com/swaggest/openapi-go/openapi31"

	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/policy/access"
)

// Document returns the OpenAPI document that /openapi.json serves.
func Document(version string) ([]byte, error) {
	return document(routes(Options{}, newHandlers(Options{}, &Server{})), version)
}

// document builds the OpenAPI document of a route table.
func document(rs []route, version string) ([]byte, error) {
	r := openapi31.NewReflector()
	r.DefaultOptions = append(r.DefaultOptions,
		jsonschema.InterceptDefName(func(t reflect.Type, _ string) string { return schemaName(t) }),
		jsonschema.InterceptNullability(neverNull),
	)
	r.Spec.Info.WithTitle("Glasshouse").WithVersion(version).
		WithDescription("Glasshouse runs autonomous agents in jails (sandboxes) and records their activity. Errors are problem details (RFC 9457). " +
			"Lists are paginated with limit and after. Requests with unknown fields or parameters are rejected.")
	r.Spec.SetHTTPBearerTokenSecurity("token", "gh_…", "A token with a role: viewer, operator or admin. Each role includes the previous one. "+
		"The daemon's unix socket does not require a token. Browsers cannot set headers on a WebSocket; they send the subprotocols glasshouse and bearer.TOKEN instead.")
	for _, rt := range rs {
		if err := describe(r, rt); err != nil {
			return nil, fmt.Errorf("describe %s: %w", rt.pattern, err)
		}
	}
	return json.MarshalIndent(r.Spec, "", " ")
}

func describe(r *openapi31.Reflector, rt route) error {
	method, pattern, _ := strings.Cut(rt.pattern, " ")
	oc, err := r.NewOperationContext(method, pattern)
	if err != nil {
		return fmt.Errorf("describe %s: %w", rt.pattern, err)
	}
	oc.SetID(rt.id)
	oc.SetTags(strings.Split(pattern, "/")[1])
	summary, _, _ := strings.Cut(rt.doc, ". ")
	oc.SetSummary(strings.TrimSuffix(summary, "."))
	if rt.role != "" {
		oc.SetDescription(fmt.Sprintf("%s Requires the role %s.", rt.doc, rt.role))
		oc.AddSecurity("token")
	}
	describeRequest(oc, rt.op)
	describeAnswers(oc, rt)
	return r.AddOperation(oc)
}

func describeRequest(oc openapi.OperationContext, op operation) {
	if op.params != nil && op.params != (none{}) {
		oc.AddReqStructure(op.params)
	}
	if op.once && strings.EqualFold(oc.Method(), http.MethodPost) {
		oc.AddReqStructure(struct {
			Key string `header:"Idempotency-Key" description:"A key that makes the request idempotent. A request with the same key within 24 hours has no further effect and returns the first response with the header Idempotent-Replay: true." maxLength:"255"`
		}{})
	}
	if op.body != nil && op.body != (none{}) {
		oc.AddReqStructure(op.body, openapi.WithCustomize(func(cor openapi.ContentOrReference) {
			if body, ok := cor.(*openapi31.RequestBodyOrReference); ok && !optional(reflect.TypeOf(op.body)) {
				body.RequestBodyEns().WithRequired(true)
			}
		}))
	}
	for _, kind := range op.accept {
		oc.AddReqStructure("", openapi.WithContentType(kind))
	}
}

func describeAnswers(oc openapi.OperationContext, rt route) {
	op := rt.op
	var result any
	if op.result != nil && op.result != (none{}) {
		result = op.result
	}
	if result != nil || len(op.answers) == 0 {
		oc.AddRespStructure(result, openapi.WithHTTPStatus(op.status))
	}
	for _, m := range op.answers {
		v := m.value
		if v == nil {
			v = ""
		}
		oc.AddRespStructure(v, openapi.WithHTTPStatus(m.status), openapi.WithContentType(m.kind))
	}
	oc.AddRespStructure(wire.Problem{}, openapi.WithContentType(wire.ProblemType), func(cu *openapi.ContentUnit) {
		cu.IsDefault = true
		cu.Description = "An error."
	})
	if rt.role != "" && !access.Agent.Allows(rt.role) {
		for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden} {
			oc.AddRespStructure(wire.Problem{}, openapi.WithContentType(wire.ProblemType), openapi.WithHTTPStatus(status))
		}
	}
}

// schemaName returns the schema name of a type: Page[wire.Jail] becomes JailPage.
func schemaName(t reflect.Type) string {
	name := t.Name()
	if t.PkgPath() == reflect.TypeFor[id.Jail]().PkgPath() {
		return name + "ID" // not shown; the suffix avoids a collision with the object's schema
	}
	outer, inner, generic := strings.Cut(name, "[")
	if !generic {
		return name
	}
	inner = path.Base(strings.TrimSuffix(inner, "]"))
	return inner[strings.LastIndex(inner, ".")+1:] + outer
}

// neverNull declares lists and objects as optional instead of nullable.
func neverNull(p jsonschema.InterceptNullabilityParams) {
	if p.NullAdded && p.Type.Kind() != reflect.Interface {
		p.Schema.RemoveType(jsonschema.Null)
	}
}
