package api

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"glasshouse/api/apitest"
)

// A metric is what is served under one name.
type metric struct {
	kind   string
	help   string
	labels []string
}

// served gathers every metric there is, once each has had something to count.
func served(t *testing.T) map[string]metric {
	t.Helper()
	ms := newMetrics(apitest.New())
	ms.request("GET /jails", &recorder{status: 200}, time.Millisecond)
	ms.opened("events")()
	ms.execs.WithLabelValues("wait").Inc()
	all := map[string]metric{}
	families, err := ms.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		m := metric{kind: strings.ToLower(f.GetType().String()), help: f.GetHelp()}
		for _, l := range f.Metric[0].Label {
			m.labels = append(m.labels, l.GetName())
		}
		all[f.GetName()] = m
	}
	// A counter of the registry that was forgotten above would be missing here.
	described := make(chan *prometheus.Desc, 1000)
	ms.registry.Describe(described)
	close(described)
	for d := range described {
		name := regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String())[1]
		if all[name].kind == "" && strings.HasPrefix(name, "glasshouse_") {
			t.Errorf("%s was not made to count", name)
		}
	}
	return all
}

func TestEveryMetricIsDocumentedAndNoneElse(t *testing.T) {
	doc, err := os.ReadFile("../docs/telemetry.md")
	if err != nil {
		t.Fatal(err)
	}
	var named []string
	all := served(t)
	for _, m := range regexp.MustCompile("(?m)^\\| `((?:glasshouse|go|process)_\\w+)` \\| (\\w+) \\| ([^|]*) \\|").FindAllStringSubmatch(string(doc), -1) {
		named = append(named, m[1])
		f, ok := all[m[1]]
		if !ok {
			continue // told of below
		}
		if m[2] != f.kind {
			t.Errorf("%s is documented as a %s; it is a %s", m[1], m[2], f.kind)
		}
		for _, l := range f.labels {
			if !strings.Contains(m[3], "`"+l+"`") {
				t.Errorf("%s: its label %s is not documented", m[1], l)
			}
		}
	}
	slices.Sort(named)
	if names := slices.Sorted(maps.Keys(all)); !slices.Equal(named, names) {
		t.Errorf("docs/telemetry.md has\n%s\nand served are\n%s", strings.Join(named, "\n"), strings.Join(names, "\n"))
	}
}

// seriesPart is what the series of a histogram or summary have after its name.
var seriesPart = regexp.MustCompile(`_(bucket|sum|count)$`)

func TestTheDashboardAsksForMetricsThatAreServed(t *testing.T) {
	text, err := os.ReadFile("../docs/grafana/glasshouse.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	all, asked := served(t), map[string]bool{}
	for _, p := range board.Panels {
		if len(p.Targets) == 0 {
			t.Errorf("the panel %q asks for nothing", p.Title)
		}
		for _, target := range p.Targets {
			for _, name := range regexp.MustCompile(`\b(?:glasshouse|go|process)_\w+`).FindAllString(target.Expr, -1) {
				if _, ok := all[name]; !ok {
					name = seriesPart.ReplaceAllString(name, "")
				}
				if _, ok := all[name]; !ok {
					t.Errorf("the panel %q asks for %s, which is not served", p.Title, name)
					continue
				}
				asked[name] = true
			}
		}
	}
	for name := range all {
		if strings.HasPrefix(name, "glasshouse_") && !asked[name] {
			t.Errorf("no panel shows %s", name)
		}
	}
}
