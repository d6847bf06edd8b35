package base

import (
	"errors"

	"glasshouse/fault"
	"glasshouse/host/cgroup"
	"glasshouse/jail"
)

// Lacks returns the features that the cgroups of a host do not support, with the reasons.
func Lacks(tree *cgroup.Tree) map[string]string {
	lacks := map[string]string{}
	for _, what := range []string{"cpu", "memory", "pids", "freeze"} {
		if why, ok := tree.Lacks()[what]; ok {
			lacks[what] = why
		}
	}
	return lacks
}

// CheckAlone returns an error if the jail is running, because undoing the creation would kill it.
func CheckAlone(tree *cgroup.Tree, p jail.Plan, op string) error {
	cg, err := tree.Open(string(p.ID))
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if busy, err := cg.Populated(); err != nil || busy {
		return errors.Join(err, fault.Newf(fault.Conflict, op, string(p.ID), "the jail is running"))
	}
	return nil
}

// Reason returns the message of err without its operation.
func Reason(err error) string {
	if e, ok := errors.AsType[*fault.Error](err); ok && e.Err != nil {
		err = e.Err
	}
	return err.Error()
}

// statName maps the fields of cgroup.Stats to those of jail.Stats.
var statName = map[string]string{
	"CPU": "cpu", "MemoryBytes": "memory_bytes", "MemoryPeak": "memory_peak", "PIDs": "pids", "OOMKills": "oom_kills",
}

// Stats returns the statistics of the jail of a cgroup that has tasks of the host's programs, such
// as the threads of init, which do not count.
func Stats(cg cgroup.Stats, tasks int64) jail.Stats {
	s := jail.Stats{
		CPU: cg.CPU, MemoryBytes: cg.MemoryBytes, CacheBytes: cg.CacheBytes, MemoryPeak: cg.MemoryPeak,
		PIDs: max(0, cg.PIDs-tasks), OOMKills: cg.OOMKills,
	}
	for _, field := range cg.NotMeasured {
		if name, ok := statName[field]; ok {
			s.NotMeasured = append(s.NotMeasured, name)
		}
	}
	return s
}
