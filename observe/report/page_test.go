package report

import (
	"fmt"
	"testing"
	"time"
)

func TestChartScaleEndsAtRoundNumber(t *testing.T) {
	for _, c := range []struct {
		value, unit float64
		want        string
	}{
		{.07, 1000, "0.1"}, {.1, 1000, "0.1"}, {1.11, 1000, "2"}, {3, 1000, "4"}, {8.1, 1000, "10"}, {180, 1000, "200"}, {801, 1000, "1000"},
		{1000, 1000, "1000"}, {1001, 1000, "2000"}, {90 << 20, 1024, fmt.Sprint(100 << 20)}, {1 << 30, 1024, fmt.Sprint(1 << 30)},
		{1<<30 - 1, 1024, fmt.Sprint(1 << 30)}, {1<<30 + 1, 1024, fmt.Sprint(2 << 30)},
	} {
		if got := fmt.Sprintf("%.6g", round(c.value, c.unit)); got != sixDigits(c.want) {
			t.Errorf("above %g comes %s, want %s", c.value, got, c.want)
		}
	}
	for f := .1; f < 1e19; f *= 1.37 {
		for _, unit := range []float64{1000, 1024} {
			if got := round(f, unit); got < f || got > 2*f+.1 {
				t.Errorf("above %g comes %g", f, got)
			}
		}
	}
}

func sixDigits(s string) string {
	var f float64
	fmt.Sscan(s, &f)
	return fmt.Sprintf("%.6g", f)
}

func TestChartsOfSeveralDaysShowTheDay(t *testing.T) {
	from := time.Date(2025, 3, 14, 23, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		step       time.Duration
		first, end string
	}{{time.Minute, "23:00:00", "23:02:00"}, {time.Hour, "14 Mar 23:00", "15 Mar 01:00"}} {
		list := charts(Usage{Step: c.step.Milliseconds(), Points: []Point{
			{Time: from, Sampled: true, Memory: 3 << 20}, {Time: from.Add(c.step), Sampled: true, Memory: 5 << 20}}})
		if len(list) != 1 || list[0].From != c.first || list[0].To != c.end || list[0].Scale != [3]string{"6 MiB", "3 MiB", "0"} {
			t.Errorf("steps of %v: %+v", c.step, list)
		}
	}
}
