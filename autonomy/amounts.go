package autonomy

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strings"

	"glasshouse/fault"
	"glasshouse/internal/text"
)

// Limits are what a jail may use. In what is asked for, 0 leaves one as it is.
type Limits struct {
	CPU    int64 `json:"cpu_milli,omitempty"` // thousandths of a processor
	Memory int64 `json:"memory_mb,omitempty"` // MiB, as the jail's own limits have it
	Disk   int64 `json:"disk_mb,omitempty"`   // MiB
	PIDs   int64 `json:"pids,omitempty"`
}

// each names the four, for messages and for what is done to all of them.
func (l *Limits) each() [4]struct {
	name string
	n    *int64
} {
	return [4]struct {
		name string
		n    *int64
	}{{"cpu", &l.CPU}, {"memory", &l.Memory}, {"disk", &l.Disk}, {"pids", &l.PIDs}}
}

// zip puts limits together, one by one.
func zip(a, b Limits, f func(a, b int64) int64) Limits {
	return Limits{f(a.CPU, b.CPU), f(a.Memory, b.Memory), f(a.Disk, b.Disk), f(a.PIDs, b.PIDs)}
}

func (l Limits) plus(m Limits) Limits {
	return zip(l, m, func(a, b int64) int64 { return a + b })
}

// beyond is how much l is more than m.
func (l Limits) beyond(m Limits) Limits {
	return zip(l, m, func(a, b int64) int64 { return max(a-b, 0) })
}

// over is l with what asked says put in its place.
func (l Limits) over(asked Limits) Limits {
	return zip(l, asked, func(old, n int64) int64 {
		if n == 0 {
			return old
		}
		return n
	})
}

// atLeast is what a request asks for, given that a jail always keeps its own: a request is
// for at least that much. What is not asked for stays 0.
func (l Limits) atLeast(base Limits) Limits {
	return zip(l, base, func(asked, own int64) int64 {
		if asked == 0 {
			return 0
		}
		return max(asked, own)
	})
}

// String is the limits as agents ask for them: "cpu=2 memory=4096".
func (l Limits) String() string {
	var parts []string
	if l.CPU != 0 {
		cpu := strings.TrimRight(fmt.Sprintf("%d.%03d", l.CPU/1000, l.CPU%1000), "0")
		parts = append(parts, "cpu="+strings.TrimSuffix(cpu, "."))
	}
	all := l.each()
	for _, f := range all[1:] {
		if *f.n != 0 {
			parts = append(parts, fmt.Sprintf("%s=%d", f.name, *f.n))
		}
	}
	return strings.Join(parts, " ")
}

// ParseResources reads what an agent asks for: {"cpu": "2", "memory": "4Gi"}.
// Each is text or a number: cpu in processors ("2", "0.5") or thousandths
// ("500m"); memory and disk in MiB ("4096") or with a unit ("4Gi", "512MB");
// pids a count. What is not exactly that is an error, and so is an empty
// request: to guess would be to give what nobody asked for.
func ParseResources(body []byte) (Limits, error) {
	const op = "autonomy.ParseResources"
	bad := &fault.Error{Op: op, Kind: fault.Invalid, Err: fmt.Errorf("the body is no JSON object"), Remedy: `send {"cpu": "2", "memory": "4Gi"}`}
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
			return Limits{}, fault.Fieldf(op, name, "want text or a number")
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
		return Limits{}, &fault.Error{Op: op, Kind: fault.Invalid, Err: fmt.Errorf("nothing is asked for"), Remedy: bad.Remedy}
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
	return "", fmt.Errorf("not an amount")
}

// maxAmount is more than any host has, and far from where sums overflow.
const maxAmount = 1 << 40

func parseCPU(s string) (int64, error) {
	if milli, ok := strings.CutSuffix(s, "m"); ok {
		return parseAmount(milli, 1, maxAmount)
	}
	return parseAmount(s, 1000, maxAmount)
}

// units are in bytes.
var units = map[string]int64{
	"": 1 << 20, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
	"K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
}

func parseMB(s string) (int64, error) {
	number := strings.TrimRight(s, "KkMGTiB")
	unit := strings.TrimSuffix(s[len(number):], "B")
	size, ok := units[unit]
	if !ok || unit == "" && number != s { // "4B"
		return 0, fmt.Errorf("no unit known here; there are Mi, Gi, M, G and the like")
	}
	n, err := parseAmount(number, size, maxAmount<<20)
	return (n + 1<<20 - 1) >> 20, err
}

// parseAmount reads a plain decimal number, "1" or "1.5", and multiplies it. A
// part of a unit that is left over counts as a whole one.
func parseAmount(s string, times, most int64) (int64, error) {
	whole, part, dot := strings.Cut(s, ".")
	if !digits(whole) || dot && !digits(part) || len(s) > 30 {
		return 0, fmt.Errorf("not a plain number")
	}
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		return 0, fmt.Errorf("not a plain number")
	}
	r.Mul(r, new(big.Rat).SetInt64(times))
	n := new(big.Int).Add(r.Num(), new(big.Int).Sub(r.Denom(), big.NewInt(1)))
	n.Quo(n, r.Denom())
	switch {
	case n.Sign() == 0:
		return 0, fmt.Errorf("it must be more than 0")
	case !n.IsInt64() || n.Int64() > most:
		return 0, fmt.Errorf("too much")
	}
	return n.Int64(), nil
}

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
