package snapshot

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
	"unicode/utf8"

	"glasshouse/fault"
	"glasshouse/id"
	"glasshouse/internal/atomicfile"
	"glasshouse/jail"
)

// processesFile lists the processes in a snapshot. It is kept as long as its layer, because
// jails that were restored from the layer contain these processes.
const processesFile = "processes.json"

// maxProcesses bounds its size when it is read.
const maxProcesses = 256 << 20

// A process is a process of a snapshot or a jail. PID and Born together identify it: a process
// keeps both when it is dumped and restored.
type process struct {
	PID     int           `json:"pid"`
	PPID    int           `json:"ppid"`
	Born    string        `json:"born"`
	Began   time.Time     `json:"began"`
	Comm    text          `json:"comm"`
	Exe     text          `json:"exe"`
	Cwd     text          `json:"cwd"`
	Argv    []text        `json:"argv"`
	Env     []text        `json:"env"`
	Cut     bool          `json:"cut,omitempty"`
	Sockets []jail.Socket `json:"sockets,omitempty"`
}

// text is a byte string from a jail. JSON can represent it as a string only if it is UTF-8.
type text string

func (t text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal(bytesOf{[]byte(t)})
}

type bytesOf struct {
	Base64 []byte `json:"base64"`
}

func (t *text) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var o bytesOf
		err := json.Unmarshal(b, &o)
		*t = text(o.Base64)
		return err
	}
	var s string
	err := json.Unmarshal(b, &s)
	*t = text(s)
	return err
}

func texts(list []string) []text {
	all := make([]text, 0, len(list))
	for _, s := range list {
		all = append(all, text(s))
	}
	return all
}

// identify assigns identities to the processes of j, which was restored over the layer of a
// snapshot unless over is "". If the processes of that snapshot are unknown, the inherited
// ones count as new.
func (ss *snapshots) identify(j jail.Jail, over string, found []jail.Process) []process {
	before := map[int]process{}
	if over != "" {
		list, err := readProcesses(filepath.Dir(over))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			ss.cfg.Log.Warn("cannot read the process list of a snapshot", "layer", over, "err", err)
		}
		for _, p := range list {
			before[p.PID] = p
		}
	}
	var all []process
	for _, f := range found {
		p := process{
			PID: f.PID, PPID: f.PPID, Began: f.Started, Comm: text(f.Comm), Exe: text(f.Exe), Cwd: text(f.Cwd),
			Argv: texts(f.Argv), Env: texts(f.Env), Cut: f.Truncated, Sockets: f.Sockets,
			Born: fmt.Sprintf("%s/%s/%d", cmp.Or(j.InstanceID, j.ID), j.Boot, f.StartTicks),
		}
		if was, ok := before[f.PID]; f.Inherited && ok {
			p.Born, p.Began = was.Born, was.Began
		}
		all = append(all, p)
	}
	return all
}

// keepProcesses stores the process list of the snapshot. If the list is unavailable,
// comparisons report that, and the snapshot remains usable.
func (t *taking) keepProcesses(made jail.Checkpoint) error {
	if made.Images == "" {
		return nil
	}
	if made.ProcessesErr != nil {
		t.snapshots.cfg.Log.Debug("cannot list the processes of a snapshot", "snapshot", t.s.ID, "err", made.ProcessesErr)
		return nil
	}
	return writeProcesses(t.dir, t.snapshots.identify(made.Jail, made.BaseLayer, made.Processes))
}

func writeProcesses(dir string, list []process) error {
	b, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("encode the process list: %w", err)
	}
	return atomicfile.Write(filepath.Join(dir, processesFile), b, 0o600)
}

func readProcesses(dir string) ([]process, error) {
	f, err := os.Open(filepath.Join(dir, processesFile))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxProcesses))
	if err != nil {
		return nil, err
	}
	var list []process
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return list, nil
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// processesOf returns the process list of a snapshot.
func (ss *snapshots) processesOf(s *Snapshot) ([]process, error) {
	if !s.Memory {
		return nil, nil
	}
	list, err := readProcesses(ss.dir(s.Jail.ID, s.ID))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Newf(fault.NotFound, "", "", "the snapshot has no process list")
	}
	return list, err
}

// running returns the current processes of a jail.
func (ss *snapshots) running(ctx context.Context, jid id.Jail) ([]process, error) {
	for range 10 {
		j, err := ss.cfg.Jails.Get(ctx, jid)
		if err != nil {
			return nil, err
		}
		found, err := ss.cfg.Jails.Processes(ctx, jid)
		if err != nil {
			return nil, err
		}
		list := ss.identify(j, topmost(j), found)
		now, err := ss.cfg.Jails.Get(ctx, jid)
		if err != nil {
			return nil, err
		}
		if now.InstanceID == j.InstanceID && topmost(now) == topmost(j) {
			return list, nil
		}
	} // the jail has moved to another instance; retry
	return nil, fault.Newf(fault.Unavailable, "", "", "the jail changed repeatedly during the comparison")
}

// topmost returns the topmost sealed layer of a jail, or "".
func topmost(j jail.Jail) string {
	if len(j.Sealed) == 0 {
		return ""
	}
	return j.Sealed[0]
}
