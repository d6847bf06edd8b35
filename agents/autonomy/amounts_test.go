package autonomy_test

import (
	"errors"
	"fmt"
	"testing"

	"glasshouse/agents/autonomy"
	"glasshouse/fault"
)

func TestParseResources(t *testing.T) {
	tests := []struct {
		body string
		want autonomy.Limits
	}{
		{`{"cpu":"2","memory":"4Gi"}`, autonomy.Limits{CPU: 2000, Memory: 4096}},
		{`{"cpu":"0.5"}`, autonomy.Limits{CPU: 500}},
		{`{"cpu":"1500m"}`, autonomy.Limits{CPU: 1500}},
		{`{"cpu":2}`, autonomy.Limits{CPU: 2000}},
		{`{"cpu":1.25,"memory":null}`, autonomy.Limits{CPU: 1250}},
		{`{"cpu":"0.0001"}`, autonomy.Limits{CPU: 1}},
		{`{"memory":"4096"}`, autonomy.Limits{Memory: 4096}},
		{`{"memory":512}`, autonomy.Limits{Memory: 512}},
		{`{"memory":"1.5Gi","disk":"10G"}`, autonomy.Limits{Memory: 1536, Disk: 9537}},
		{`{"memory":"1GB"}`, autonomy.Limits{Memory: 954}},
		{`{"memory":"1GiB"}`, autonomy.Limits{Memory: 1024}},
		{`{"memory":"1Ki"}`, autonomy.Limits{Memory: 1}},
		{`{"disk":"1Ti","pids":"256"}`, autonomy.Limits{Disk: 1 << 20, PIDs: 256}},
	}
	for _, tt := range tests {
		if got, err := autonomy.ParseResources([]byte(tt.body)); err != nil || got != tt.want {
			t.Errorf("ParseResources(%s) = %+v, %v; want %+v", tt.body, got, err, tt.want)
		}
	}
}

func TestParseResourcesInvalid(t *testing.T) {
	for _, v := range []string{
		`""`, `"0"`, `"-1"`, `"+1"`, `"1e3"`, `1e3`, `"0x10"`, `" 1"`, `"1 "`, `"1,5"`, `"1."`, `".5"`, `"1.2.3"`, `"1_000"`, `"NaN"`, `"Inf"`, `"all"`,
		`"٤"`, `[1]`, `{"a":1}`, `true`, `"99999999999999999999999999999999"`, `"1m1"`, `"1Gi Gi"`, `"GiB"`, `"4B"`, `"1iB"`, `"1Pi"`,
	} {
		for _, name := range []string{"cpu", "memory", "disk", "pids"} {
			body := fmt.Sprintf(`{"%s":%s}`, name, v)
			if got, err := autonomy.ParseResources([]byte(body)); !errors.Is(err, fault.Invalid) || fault.FieldOf(err) != name {
				t.Errorf("ParseResources(%s) = %+v, %v; want %v", body, got, err, fault.Invalid)
			}
		}
	}
	for _, body := range []string{``, `null`, `[]`, `{}`, `{"cpu":null}`, `{"cpus":"2"}`, `{"cpu":"2"} {}`, `{"cpu":"4Gi"}`, `{"pids":"1.5m"}`, `{"memory":"99999999Ti"}`} {
		if got, err := autonomy.ParseResources([]byte(body)); !errors.Is(err, fault.Invalid) {
			t.Errorf("ParseResources(%s) = %+v, %v; want %v", body, got, err, fault.Invalid)
		}
	}
}

func TestLimitsString(t *testing.T) {
	l := autonomy.Limits{CPU: 1500, Memory: 4096, PIDs: 10}
	if got, want := l.String(), "cpu=1.5 memory=4096 pids=10"; got != want {
		t.Errorf("String() = %q, want %q", got, want)
	}
	if got := (autonomy.Limits{CPU: 2000}).String(); got != "cpu=2" {
		t.Errorf("String() = %q, want cpu=2", got)
	}
}

func FuzzParseResources(f *testing.F) {
	for _, s := range []string{`{"cpu":"2","memory":"4Gi"}`, `{"cpu":1.5,"disk":"10GB","pids":64}`, `{"memory":"0.000001Ti"}`, `{"cpu":"١"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		l, err := autonomy.ParseResources(body)
		if err != nil {
			if !errors.Is(err, fault.Invalid) {
				t.Errorf("ParseResources(%s) = %v, want kind %v", body, err, fault.Invalid)
			}
			return
		}
		if l == (autonomy.Limits{}) || min(l.CPU, l.Memory, l.Disk, l.PIDs) < 0 || max(l.CPU, l.Memory, l.Disk, l.PIDs) > 1<<40 {
			t.Errorf("ParseResources(%s) = %+v, out of range", body, l)
		}
	})
}
