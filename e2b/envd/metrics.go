package envd

import (
	"fmt"
	"math"
	"net/http"
	"runtime"
	"time"

	"glasshouse/jail"
)

// measured is the resource usage of a sandbox, in the format of E2B's envd.
type measured struct {
	At        int64   `json:"ts"`
	CPUs      int     `json:"cpu_count"`
	CPUUsed   float64 `json:"cpu_used_pct"`
	MemTotal  int64   `json:"mem_total"`
	MemUsed   int64   `json:"mem_used"`
	MemCache  int64   `json:"mem_cache"`
	MemTotalM int64   `json:"mem_total_mib"`
	MemUsedM  int64   `json:"mem_used_mib"`
	DiskUsed  int64   `json:"disk_used"`
	DiskTotal int64   `json:"disk_total"`
}

// between is the interval over which CPU usage is measured.
const between = 100 * time.Millisecond

func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	m, err := s.measure(r)
	if err != nil {
		s.refused(w, r, err)
		return
	}
	writeJSON(w, m)
}

func (s *Server) measure(r *http.Request) (measured, error) {
	ctx, v := r.Context(), visited(r.Context())
	j, err := s.jails.Get(ctx, v.Jail)
	if err != nil {
		return measured{}, fmt.Errorf("read the limits of the sandbox: %w", err)
	}
	before, err := s.jails.Stats(ctx, v.Jail)
	if err != nil {
		return measured{}, fmt.Errorf("read the first sample of its usage: %w", err)
	}
	began := time.Now()
	select {
	case <-time.After(between):
	case <-ctx.Done():
		return measured{}, ctx.Err()
	}
	after, err := s.jails.Stats(ctx, v.Jail)
	if err != nil {
		return measured{}, fmt.Errorf("read the second sample of its usage: %w", err)
	}
	return use(j.Spec, before, after, time.Since(began), time.Now()), nil
}

// use computes the usage from two measurements. The percentage is relative to all CPUs of the
// sandbox.
func use(spec jail.Spec, before, after jail.Stats, took time.Duration, now time.Time) measured {
	cpus := runtime.NumCPU() // CPU shares apply only under contention: an idle host gives a sandbox all CPUs
	pct := 100 * float64(after.CPU-before.CPU) / float64(took) / float64(cpus)
	return measured{
		At: now.Unix(), CPUs: cpus, CPUUsed: math.Round(100*min(max(pct, 0), 100)) / 100,
		MemTotal: spec.Limits.MemoryMB << 20, MemUsed: after.MemoryBytes - after.CacheBytes, MemCache: after.CacheBytes,
		MemTotalM: spec.Limits.MemoryMB, MemUsedM: (after.MemoryBytes - after.CacheBytes) >> 20,
		DiskUsed: after.DiskBytes, DiskTotal: after.DiskLimit,
	}
}

// envs returns the environment variables that all commands of the sandbox have.
func (s *Server) envs(w http.ResponseWriter, r *http.Request) {
	env := visited(r.Context()).Env
	if env == nil {
		env = map[string]string{}
	}
	writeJSON(w, env)
}
