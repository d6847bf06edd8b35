package template

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"glasshouse/internal/text"
)

// An Entry is a line of a build's log.
type Entry struct {
	Timestamp time.Time `json:"timestamp"`
	Level     string    `json:"level"`
	Message   string    `json:"message"`
	Step      string    `json:"step,omitempty"`
}

// levels are ordered by severity.
var levels = []string{"debug", "info", "warn", "error"}

// Limits of the log of one build.
const (
	maxEntries = 20_000
	maxLogged  = 16 << 20
	maxLine    = 4 << 10
)

// A buildLog is the log of a build, in a file. It is safe for concurrent use.
type buildLog struct {
	mu   sync.Mutex
	file *os.File
	// +checklocks:mu
	entries []Entry
	// +checklocks:mu
	bytes int
	// +checklocks:mu
	full bool
	// +checklocks:mu
	err error // first write error
}

func openLog(name string) (*buildLog, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create the log of the build: %w", err)
	}
	return &buildLog{file: f}, nil
}

// printf adds a line. The last line of a truncated log is a note about the truncation.
func (j *buildLog) printf(level, step, format string, args ...any) {
	line := text.Clip(strings.ToValidUTF8(fmt.Sprintf(format, args...), "�"), maxLine)
	j.mu.Lock()
	defer j.mu.Unlock()
	if over := len(j.entries) >= maxEntries || j.bytes+len(line) > maxLogged; over && level != "error" {
		if j.full {
			return
		}
		j.full, level, line = true, "warn", "the build log is truncated: it is too long"
	}
	j.add(Entry{time.Now().UTC(), level, line, step})
}

// add stores an entry in memory and in the file. The caller holds j.mu.
//
// +checklocks:j.mu
func (j *buildLog) add(e Entry) {
	j.entries, j.bytes = append(j.entries, e), j.bytes+len(e.Message)
	line, err := json.Marshal(e)
	if err == nil {
		_, err = j.file.Write(append(line, '\n'))
	}
	j.err = errors.Join(j.err, err)
}

func (j *buildLog) all() []Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.entries[:len(j.entries):len(j.entries)]
}

// close closes the file and returns the first write error.
func (j *buildLog) close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return errors.Join(j.err, j.file.Close())
}

// readLog returns the lines of an earlier build's log. The log of an interrupted build ends
// without a final line.
func readLog(name string) ([]Entry, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the log of the build: %w", err)
	}
	defer f.Close()
	var all []Entry
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16*maxLine)
	for lines.Scan() {
		var e Entry
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			break
		}
		all = append(all, e)
	}
	return all, lines.Err()
}
