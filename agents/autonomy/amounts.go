package autonomy

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strings"

	"glasshouse/fault"
	"glasshouse/internal/text"
)

// Limits are the resource limits of a jail. In a request, 0 means unchanged.
type Limits struct {
	CPU    int64 `json:"cpu_milli,omitempty"` // thousandths of a CPU
	Memory int64 `json:"memory_mb,omitempty"` // MiB, the unit of the jail's own limits
	Disk   int64 `json:"disk_mb,omitempty"`   // MiB
	PIDs   int64 `json:"pids,omitempty"`
}

// fields returns the fields with their names.
func (l *Limits) fields() [4]struct {
	name string
	n    *int64
} {
	return [4]struct {
		name string
		n    *int64
	}{{"cpu", &l.CPU}, {"memory", &l.Memory}, {"disk", &l.Disk}, {"pids", &l.PIDs}}
}

// combine applies f to each pair of fields.
func combine(a, b Limits, f func(a, b int64) int64) Limits {
	return Limits{f(a.CPU, b.CPU), f(a.Memory, b.Memory), f(a.Disk, b.Disk), f(a.PIDs, b.PIDs)}
}

func (l Limits) plus(m Limits) Limits {
	return combine(l, m, func(a, b int64) int64 { return a + b })
}

// excess returns the amounts by which l exceeds m.
func (l Limits) excess(m Limits) Limits {
	return combine(l, m, func(a, b int64) int64 { return max(a-b, 0) })
}

// override returns l with the nonzero fields of asked.
func (l Limits) override(asked Limits) Limits {
	return combine(l, asked, func(old, n int64) int64 {
		if n == 0 {
			return old
		}
		return n
	})
}

// atLeast raises the requested amounts to base, which a jail always keeps. Fields that are 0
// stay 0.
func (l Limits) atLeast(base Limits) Limits {
	return combine(l, base, func(asked, own int64) int64 {
		if asked == 0 {
			return 0
		}
		return max(asked, own)
	})
}

// String returns the limits in the format of a request: "cpu=2 memory=4096".
func (l Limits) String() string {
	var parts []string
	if l.CPU != 0 {
		cpu := strings.TrimRight(fmt.Sprintf("%d.%03d", l.CPU/1000, l.CPU%1000), "0")
		parts = append(parts, "cpu="+strings.TrimSuffix(cpu, "."))
	}
	all := l.fields()
	for _, f := range all[1:] {
		if *f.n != 0 {
			parts = append(parts, fmt.Sprintf("%s=%d", f.name, *f.n))
		}
	}
	return strings.Join(parts, " ")
}

// ParseResources parses a resource request: {"cpu": "2", "memory": "4Gi"}. Values are strings
// or numbers: cpu in CPUs ("2", "0.5") or thousandths ("500m"); memory and disk in MiB
// ("4096") or with a unit ("4Gi", "512MB"); pids a count. Any other format and an empty
// request are errors.
func ParseResources(body []byte) (Limits, error) {
	const op = "autonomy.ParseResources"
	bad := &fault.Error{Op: op, Kind: fault.Invalid, Err: fmt.Errorf("the body is not a JSON object"), Remedy: `send {"cpu": "2", "memory": "4Gi"}`}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil || fields == nil {
		return Limits{}, bad
	}
	var l Limits
	for name, raw := range fields {
		if string(raw) == "null" {
			continue
		}
		amount, err := amountText(raw)
		if err != nil {
			return Limits{}, fault.Fieldf(op, name, "want a string or a number")
		}
		switch name {
		case "cpu":
			l.CPU, err = parseCPU(amount)
		case "memory":
			l.Memory, err = parseMB(amount)
		case "disk":
			l.Disk, err = parseMB(amount)
		case "pids":
			l.PIDs, err = parseAmount(amount, 1, maxAmount)
		default:
			return Limits{}, fault.Fieldf(op, text.Visible(text.Clip(name, 40)), "is not one of cpu, memory, disk, pids")
		}
		if err != nil {
			return Limits{}, fault.Fieldf(op, name, "%s: %v", text.Visible(text.Clip(amount, 40)), err)
		}
	}
	if l == (Limits{}) {
		return Limits{}, &fault.Error{Op: op, Kind: fault.Invalid, Err: fmt.Errorf("the request is empty"), Remedy: bad.Remedy}
	}
	return l, nil
}

func amountText(raw json.RawMessage) (string, error) {
	if raw[0] == '"' {
		var s string
		err := json.Unmarshal(raw, &s)
		return s, err
	}
	if raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9' {
		return string(raw), nil
	}
	return "", fmt.Errorf("not a number with an optional unit")
}

// maxAmount exceeds any host, and is small enough that sums do not overflow.
const maxAmount = 1 << 40

func parseCPU(s string) (int64, error) {
	if milli, ok := strings.CutSuffix(s, "m"); ok {
		return parseAmount(milli, 1, maxAmount)
	}
	return parseAmount(s, 1000, maxAmount)
}

// units maps unit suffixes to bytes.
var units = map[string]int64{
	"": 1 << 20, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
	"K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
}

func parseMB(s string) (int64, error) {
	number := strings.TrimRight(s, "KkMGTiB")
	unit := strings.TrimSuffix(s[len(number):], "B")
	size, ok := units[unit]
	if !ok || unit == "" && number != s { // "4B"
		return 0, fmt.Errorf("unknown unit: want Ki, Mi, Gi, Ti, K, M, G or T")
	}
	n, err := parseAmount(number, size, maxAmount<<20)
	return (n + 1<<20 - 1) >> 20, err
}

// parseAmount parses a decimal number, "1" or "1.5", and multiplies it by times, rounding up.
func parseAmount(s string, times, most int64) (int64, error) {
	integer, part, dot := strings.Cut(s, ".")
	if !digits(integer) || dot && !digits(part) || len(s) > 30 {
		return 0, fmt.Errorf("not a decimal number")
	}
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		return 0, fmt.Errorf("not a decimal number")
	}
	r.Mul(r, new(big.Rat).SetInt64(times))
	n := new(big.Int).Add(r.Num(), new(big.Int).Sub(r.Denom(), big.NewInt(1)))
	n.Quo(n, r.Denom())
	switch {
	case n.Sign() == 0:
		return 0, fmt.Errorf("must be greater than 0")
	case !n.IsInt64() || n.Int64() > most:
		return 0, fmt.Errorf("too large")
	}
	return n.Int64(), nil
}

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
