package e2b

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxLogs is the maximum number of lines in one response.
const maxLogs = 1000

// logs returns the start and the end of the commands that clients ran in a sandbox. Events of
// all programs are in the jail's event log.
func logs(r request) ([]wireLog, error) {
	s := r.s.cfg.Sandboxes
	c, err := s.find(r.team, r.sandbox())
	if err != nil {
		return nil, err
	}
	commands, err := s.cfg.Jails.Execs(r.Context(), c.box.Load().Jail)
	if err != nil {
		return nil, fmt.Errorf("list the commands of the sandbox: %w", err)
	}
	var all []wireLog
	for _, x := range commands {
		fields := map[string]string{"logger": "process", "id": string(x.ID), "pid": strconv.Itoa(x.PID), "cmd": strings.Join(x.Argv, " ")}
		all = append(all, wireLog{x.Started.UTC(), "info", "process started", fields})
		if x.Ended != nil {
			ended := map[string]string{"exit_code": strconv.Itoa(x.Code)}
			level := "info"
			if x.Code != 0 {
				level = "warn"
			}
			all = append(all, wireLog{x.Ended.UTC(), level, "process ended", merged(fields, ended)})
		}
	}
	slices.SortStableFunc(all, func(a, b wireLog) int { return a.Timestamp.Compare(b.Timestamp) })
	return all, nil
}

func logsFirst(r request) (int, any, error) {
	q := r.URL.Query()
	start, err := unix(q, "start", time.Millisecond)
	if err != nil {
		return 0, nil, err
	}
	all, err := logs(r)
	if err != nil {
		return 0, nil, err
	}
	all = slices.DeleteFunc(all, func(l wireLog) bool { return l.Timestamp.Before(start) })
	all, err = cut(q.Get("limit"), all)
	if err != nil {
		return 0, nil, err
	}
	lines := make([]wireLine, 0, len(all))
	for _, l := range all {
		text, err := json.Marshal(merged(l.Fields, map[string]string{"message": l.Message, "level": l.Level}))
		if err != nil {
			return 0, nil, fmt.Errorf("encode a log entry: %w", err)
		}
		lines = append(lines, wireLine{l.Timestamp, string(text)})
	}
	return http.StatusOK, map[string]any{"logs": lines, "logEntries": all}, nil
}

// levels are ordered by severity.
var levels = []string{"debug", "info", "warn", "error"}

func logsSecond(r request) (int, any, error) {
	q := r.URL.Query()
	cursor, err := unix(q, "cursor", time.Millisecond)
	if err != nil {
		return 0, nil, err
	}
	level := cmp.Or(q.Get("level"), levels[0])
	least := slices.Index(levels, level)
	if least < 0 {
		return 0, nil, invalid("invalid level %q", short(level))
	}
	direction := cmp.Or(q.Get("direction"), "forward")
	if direction != "forward" && direction != "backward" {
		return 0, nil, invalid("invalid direction %q", short(direction))
	}
	all, err := logs(r)
	if err != nil {
		return 0, nil, err
	}
	backward := direction == "backward"
	all = slices.DeleteFunc(all, func(l wireLog) bool {
		outside := !cursor.IsZero() && (!backward && l.Timestamp.Before(cursor) || backward && l.Timestamp.After(cursor))
		return outside || slices.Index(levels, l.Level) < least || !strings.Contains(l.Message, q.Get("search"))
	})
	if backward {
		slices.Reverse(all)
	}
	all, err = cut(q.Get("limit"), all)
	return http.StatusOK, map[string]any{"logs": all}, err
}

func cut(limit string, all []wireLog) ([]wireLog, error) {
	n := maxLogs
	if limit != "" {
		var err error
		n, err = strconv.Atoi(limit)
		if err != nil || n < 0 || n > maxLogs {
			return nil, invalid("invalid limit %q: want 0 to %d", short(limit), maxLogs)
		}
	}
	return append([]wireLog{}, all[:min(n, len(all))]...), nil
}
