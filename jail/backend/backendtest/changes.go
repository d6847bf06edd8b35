package backendtest

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"glasshouse/jail"
)

// changesTellWhatTheJailDid tests the contract of jail.Differ, for backends that implement it: the
// list is the same for a running and a stopped jail.
func (s *suite) changesTellWhatTheJailDid(t *testing.T) {
	d, ok := s.backend.(jail.Differ)
	if !ok {
		t.Skip("cannot tell what a jail changed")
	}
	source := shortTempDir(t)
	put(t, filepath.Join(source, "a.txt"), "original\n")
	put(t, filepath.Join(source, "gone/b.txt"), "b\n")
	put(t, filepath.Join(source, "turned/c.txt"), "c\n")
	put(t, filepath.Join(source, "same.txt"), "same\n")
	p := s.newPlan(t, func(p *jail.Plan) { p.Workspace = &jail.Workspace{Source: source, Target: "/work"} })
	b := s.create(t, p)
	b.sh(t, `cd /work && echo changed > a.txt && rm -r gone && echo same > same.txt && mkdir -p new/dir && echo x > new/dir/f && ln -s /etc/shadow new/link &&
		rm -r turned && mkdir turned && echo d > turned/d.txt && chmod 000 new/dir/f &&
		echo more >> /etc/issue && rm /usr/bin/nproc && mkdir /root/own && echo x > /root/own/f && chmod 700 /root/own && chmod 600 /root/own/f`)

	check := func(when string) {
		t.Helper()
		for _, tt := range []struct {
			workspace bool
			want      string
		}{
			{true, "modified /a.txt, deleted /gone, deleted /gone/b.txt, added /new, added /new/dir, added /new/dir/f, added /new/link, metadata /same.txt, deleted /turned/c.txt, added /turned/d.txt"},
			{false, "modified /etc/issue, added /root/own, added /root/own/f, deleted /usr/bin/nproc"},
		} {
			changes, err := d.Changes(t.Context(), p, jail.ChangesOptions{Workspace: tt.workspace})
			if err != nil {
				t.Errorf("%s: Changes: %v", when, err)
				continue
			}
			var got []string
			for _, c := range changes {
				if line := c.Kind + " " + c.Path; tt.workspace || slices.Contains(strings.Split(tt.want, ", "), line) || c.Kind == "deleted" {
					got = append(got, line)
				}
			}
			if got := strings.Join(got, ", "); got != tt.want {
				t.Errorf("%s, in the workspace %v:\n got %s\nwant %s", when, tt.workspace, got, tt.want)
			}
		}
	}
	check("live")
	b.kill(t)
	b.inst.Close()
	if err := s.backend.Clean(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	check("stopped")
	s.readingLeavesNothing(t, p)
}
