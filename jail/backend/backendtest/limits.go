package backendtest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"glasshouse/fault"
	"glasshouse/jail"
)

// limits lets one jail exhaust its resources while another one works.
func (s *suite) limits(t *testing.T) {
	neighbour := s.newBox(t)
	neighbour.start(t, `while :; do echo $((++n)) > /tmp/n; sleep 0.05; done`)
	unharmed := func(t *testing.T) {
		t.Helper()
		at := neighbour.sh(t, "cat /tmp/n")
		eventually(t, "the neighbour continues to work", func() bool { return neighbour.sh(t, "cat /tmp/n") != at })
		st, err := neighbour.inst.Stats(t.Context())
		if err != nil {
			t.Errorf("Stats of the neighbour: %v", err)
		}
		if st.OOMKills > 0 {
			t.Errorf("the OOM killer killed %d processes of the neighbour", st.OOMKills)
		}
	}

	s.clause(t, "memory-bomb", func(t *testing.T) {
		s.lacks(t, "memory")
		b := s.newBox(t, func(p *jail.Plan) { p.Limits.MemoryMB = 64 })
		if r := b.try(t, "probe eat 256"); r.status.Code == 0 {
			t.Errorf("a process took 256 MiB in a jail of 64: %v", r)
		}
		if got, want := b.sh(t, "echo alive"), "alive"; got != want {
			t.Errorf("after the memory bomb: got %q, want %q", got, want)
		}
		// The OOM killer selects a process by size and oom_score_adj
		// (proc_pid_oom_score_adj(5)), and init is larger than many commands. Init raises the
		// value of a command after its start.
		const scores = `i=0; until [ "$(cat /proc/$$/oom_score_adj)" = 500 ] || [ $i = 400 ]; do sleep 0.05; i=$((i+1)); done
			cat /proc/1/oom_score_adj /proc/$$/oom_score_adj`
		if got, want := b.sh(t, scores), fmt.Sprintf("%d\n500", jail.InitOOMScore); got != want {
			t.Errorf("oom_score_adj of init and of a command = %q, want %q", got, want)
		}
		st, err := b.inst.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(st.NotMeasured, "oom_kills") && st.OOMKills == 0 {
			t.Errorf("Stats reports no OOM kill: %+v", st)
		}
		unharmed(t)
		b.kill(t)
	})
	s.clause(t, "memory-in-files", func(t *testing.T) {
		s.lacks(t, "memory")
		b := s.newBox(t, func(p *jail.Plan) { p.Limits.MemoryMB = 64 })
		if r := b.try(t, "dd if=/dev/zero of=/dev/shm/bomb bs=1M count=256"); r.status.Code == 0 {
			t.Errorf("256 MiB fit in /dev/shm of a jail of 64: %v", r)
		}
		b.try(t, "rm -f /dev/shm/bomb")
		if got, want := b.sh(t, "echo alive"), "alive"; got != want {
			t.Errorf("after filling /dev/shm: got %q, want %q", got, want)
		}
		unharmed(t)
		b.kill(t)
	})
	s.clause(t, "pid-bomb", func(t *testing.T) {
		s.lacks(t, "pids")
		const most = 32
		b := s.newBox(t, func(p *jail.Plan) { p.Limits.MaxPIDs = most })
		b.start(t, `exec probe fork 200`)
		time.Sleep(300 * time.Millisecond)
		if n := len(processesOf(b.plan)); n > most+jail.InitThreads+4 { // the runtime's own processes
			t.Errorf("got %d processes in a jail limited to %d", n, most)
		}
		if _, err := b.ctl.WaitReady(deadline(t, 30*time.Second)); err != nil {
			t.Errorf("init does not respond in a full jail: %v", err)
		}
		unharmed(t)
		b.kill(t)
	})
	s.clause(t, "all-the-processes-asked-for", func(t *testing.T) {
		s.lacks(t, "pids")
		const most = 32
		b := s.newBox(t, func(p *jail.Plan) { p.Limits.MaxPIDs = most })
		st, err := b.inst.Stats(t.Context())
		if err != nil || st.PIDs != 0 {
			t.Errorf("an idle jail uses %d of its processes, %v; want none", st.PIDs, err)
		}
		// The shell itself counts as a process.
		if r := b.try(t, fmt.Sprintf("for n in $(seq %d); do sleep 300 > /dev/null 2>&1 & done; exit 0", most-1)); r.status.Code != 0 || r.stderr != "" {
			t.Errorf("a jail limited to %d processes cannot run that many: %v", most, r)
		}
		b.kill(t)
	})
	s.clause(t, "fork-bomb", func(t *testing.T) {
		s.lacks(t, "pids")
		b := s.newBox(t, func(p *jail.Plan) { p.Limits.MaxPIDs = 64 })
		b.start(t, `f() { f | f & }; f`)
		time.Sleep(500 * time.Millisecond)
		unharmed(t)
		b.kill(t)
	})
	s.clause(t, "disk-filler", func(t *testing.T) {
		s.lacks(t, "disk")
		b := s.newBox(t, func(p *jail.Plan) { p.Limits.DiskMB = 32 })
		if r := b.try(t, "dd if=/dev/zero of=/root/bomb bs=1M count=64"); r.status.Code == 0 {
			t.Errorf("64 MiB fit in a jail of 32: %v", r)
		}
		st, err := b.inst.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if st.DiskBytes > 33<<20 {
			t.Errorf("Stats reports %d bytes on a disk of 32 MiB", st.DiskBytes)
		}
		b.sh(t, "rm /root/bomb; sync; echo room again > /root/x")
		unharmed(t)
		b.kill(t)
	})
	s.clause(t, "many-files", func(t *testing.T) {
		s.lacks(t, "disk")
		b := s.newBox(t, func(p *jail.Plan) { p.Limits.DiskMB = 32 })
		b.try(t, "mkdir /root/many; cd /root/many; seq 100000 | tr '\\n' '\\0' | timeout 30 bash -c 'while read -r -d \"\" n; do : > $n || exit 1; done' 2> /dev/null")
		b.sh(t, "rm -r /root/many; : > /root/x")
		unharmed(t)
		b.kill(t)
	})
	s.clause(t, "cpu-hog", func(t *testing.T) {
		b := s.newBox(t)
		for range 4 {
			b.start(t, "while :; do :; done")
		}
		unharmed(t)
		b.kill(t)
	})
	neighbour.kill(t)
}

func (s *suite) statsArePlausible(t *testing.T) {
	b := s.newBox(t, func(p *jail.Plan) { p.Limits.DiskMB = 64 })
	first, err := b.inst.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.sh(t, `head -c 8M /dev/urandom > /root/data; sync`)
	b.start(t, "sleep 300")
	// gVisor's kernel counts time in which a thread waits for a host processor as processor
	// time: 400 ms there are less work on a busy host.
	var st jail.Stats
	for range 10 {
		b.sh(t, "probe burn 400")
		st, err = b.inst.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if st.CPU-first.CPU > 300*time.Millisecond {
			break
		}
	}
	for _, c := range []struct {
		field string
		ok    bool
	}{
		{"cpu", st.CPU-first.CPU > 300*time.Millisecond && st.CPU < time.Minute},
		{"memory_bytes", st.MemoryBytes > 1<<18 && st.MemoryBytes < 512<<20},
		{"memory_peak", st.MemoryPeak >= st.MemoryBytes},
		{"pids", st.PIDs >= 1 && st.PIDs < 8},
		{"disk_bytes", st.DiskBytes >= 8<<20 && st.DiskBytes < 32<<20},
		{"disk_limit", st.DiskLimit > 48<<20 && st.DiskLimit <= 64<<20},
		{"oom_kills", st.OOMKills == 0},
		{"processes_max", st.ProcessesMax == b.plan.Limits.MaxPIDs},
	} {
		if !slices.Contains(st.NotMeasured, c.field) && !c.ok {
			t.Errorf("%s is not plausible in %+v", c.field, st)
		}
	}
	b.kill(t)
}

// limitsChange raises and then lowers the limits of a running jail.
func (s *suite) limitsChange(t *testing.T) {
	lim, ok := s.backend.(jail.Limiter)
	if !ok {
		t.Skip("this backend cannot change limits")
	}
	s.lacks(t, "memory")
	b := s.newBox(t, func(p *jail.Plan) { p.Limits.MemoryMB, p.Limits.MaxPIDs = 224, 64 })
	more := b.plan.Limits
	more.CPUShares, more.MemoryMB = 1024, 384
	if _, lacking := s.backend.Lacks()["pids"]; !lacking {
		more.MaxPIDs = 96
	}
	if err := lim.Limit(t.Context(), b.plan, b.inst, more); err != nil {
		t.Fatalf("Limit to more: %v", err)
	}
	if r := b.try(t, "probe eat 256"); r.status.Code != 0 {
		t.Errorf("a process did not get 256 MiB after the limit was raised to 384 MiB: %v", r)
	}
	st, err := b.inst.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(st.NotMeasured, "processes_max") && st.ProcessesMax != more.MaxPIDs {
		t.Errorf("ProcessesMax = %d, want %d", st.ProcessesMax, more.MaxPIDs)
	}

	b.plan.Limits = more
	b.sh(t, "dd if=/dev/zero of=/dev/shm/held bs=1M count=108")
	less := more
	less.MemoryMB = 32
	if err := lim.Limit(t.Context(), b.plan, b.inst, less); !errors.Is(err, fault.Conflict) {
		t.Errorf("Limit to less than is in use = %v, want conflict", err)
	}
	if after, err := b.inst.Stats(t.Context()); err != nil || !slices.Contains(st.NotMeasured, "oom_kills") && after.OOMKills != st.OOMKills {
		t.Errorf("a limit change killed a process: %+v, %v; before %+v", after, err, st)
	}
	b.sh(t, "rm /dev/shm/held")
	eventually(t, "free memory can be reclaimed", func() bool { return lim.Limit(t.Context(), b.plan, b.inst, less) == nil })
	if got, want := b.sh(t, "echo alive"), "alive"; got != want {
		t.Errorf("after the limits were lowered: got %q, want %q", got, want)
	}

	// A daemon that opens the jail again can enforce its limits again.
	b.plan.Limits = less
	again, err := s.backend.Open(t.Context(), b.plan)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(lim.Limit(t.Context(), b.plan, again, less), again.Close()); err != nil {
		t.Errorf("Limit by the next daemon: %v", err)
	}
	b.kill(t)
}
