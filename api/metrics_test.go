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

// A metric is an exported metric.
type metric struct {
	kind   string
	help   string
	labels []string
}

// served returns all metrics, after each has a value.
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
	// Detects counters of the registry that the code above misses.
	described := make(chan *prometheus.Desc, 1000)
	ms.registry.Describe(described)
	close(described)
	for d := range described {
		name := regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String())[1]
		if all[name].kind == "" && strings.HasPrefix(name, "glasshouse_") {
			t.Errorf("%s has no value", name)
		}
	}
	return all
}

func TestDocumentedMetricsMatch(t *testing.T) {
	doc, err := os.ReadFile("../docs/how-to/telemetry.md")
	if err != nil {
		t.Fatal(err)
	}
	var named []string
	all := served(t)
	for _, m := range regexp.MustCompile("(?m)^\\| `((?:glasshouse|go|process)_\\w+)` \\| (\\w+) \\| ([^|]*) \\|").FindAllStringSubmatch(string(doc), -1) {
		named = append(named, m[1])
		f, ok := all[m[1]]
		if !ok {
			continue // reported below
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
		t.Errorf("docs/how-to/telemetry.md has\n%s\nwant\n%s", strings.Join(named, "\n"), strings.Join(names, "\n"))
	}
}

// seriesPart matches the suffix of the series of a histogram or summary.
var seriesPart = regexp.MustCompile(`_(bucket|sum|count)$`)

func TestDashboardUsesExistingMetrics(t *testing.T) {
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
			t.Errorf("panel %q has no query", p.Title)
		}
		for _, target := range p.Targets {
			for _, name := range regexp.MustCompile(`\b(?:glasshouse|go|process)_\w+`).FindAllString(target.Expr, -1) {
				if _, ok := all[name]; !ok {
					name = seriesPart.ReplaceAllString(name, "")
				}
				if _, ok := all[name]; !ok {
					t.Errorf("panel %q queries %s, which does not exist", p.Title, name)
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
