package api

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"glasshouse/jail"
)

// metrics are the Prometheus metrics, in their own registry.
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	latency  *prometheus.HistogramVec
	streams  *prometheus.GaugeVec
	execs    *prometheus.CounterVec
}

func newMetrics(m Manager) *metrics {
	ms := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "glasshouse_http_requests_total", Help: "Requests answered, by route, method and status.",
		}, []string{"route", "method", "status"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "glasshouse_http_request_seconds", Help: "Time to answer, by route and method, streams left out.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60},
		}, []string{"route", "method"}),
		streams: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "glasshouse_http_streams", Help: "Event streams and terminals that are open, by kind.",
		}, []string{"kind"}),
		execs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "glasshouse_execs_total", Help: "Commands started through the API, by how their output is read.",
		}, []string{"mode"}),
	}
	ms.registry.MustRegister(ms.requests, ms.latency, ms.streams, ms.execs, jailCounter{m},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return ms
}

func (ms *metrics) request(pattern string, rec *recorder, took time.Duration) {
	method, route, ok := strings.Cut(pattern, " ")
	if !ok {
		method, route = "", "none" // paths and methods of unknown routes must not become labels
	}
	ms.requests.WithLabelValues(route, method, strconv.Itoa(rec.status)).Inc()
	if !rec.stream {
		ms.latency.WithLabelValues(route, method).Observe(took.Seconds())
	}
}

// opened counts a stream as open until the returned function is called.
func (ms *metrics) opened(kind string) func() {
	g := ms.streams.WithLabelValues(kind)
	g.Inc()
	return g.Dec
}

func (ms *metrics) handler() http.Handler {
	return promhttp.HandlerFor(ms.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

// jailCounter counts jails by state at each scrape.
type jailCounter struct{ m Manager }

var jailsDesc = prometheus.NewDesc("glasshouse_jails", "Jails, by state.", []string{"state"}, nil)

// countTime is the timeout of one count, so that a scrape does not hang on a busy database.
const countTime = 5 * time.Second

func (jailCounter) Describe(ch chan<- *prometheus.Desc) { ch <- jailsDesc }

func (c jailCounter) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), countTime)
	defer cancel()
	all, err := c.m.List(ctx, jail.ListOptions{})
	if err != nil {
		ch <- prometheus.NewInvalidMetric(jailsDesc, err)
		return
	}
	n := map[jail.State]int{jail.Created: 0, jail.Running: 0, jail.Paused: 0, jail.Stopped: 0, jail.Failed: 0}
	for _, j := range all {
		n[j.State]++
	}
	for state, n := range n {
		ch <- prometheus.MustNewConstMetric(jailsDesc, prometheus.GaugeValue, float64(n), string(state))
	}
}
