//go:build cluster

package deploy

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/kube"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/id"
	"glasshouse/jail/backend/backendtest"
)

// TestCluster installs, updates and removes the chart in a cluster with two nodes, or as many as the
// environment variable CLUSTER_NODES says.
func TestCluster(t *testing.T) {
	dir := os.Getenv("CLUSTER_DIR")
	if dir == "" {
		t.Fatal("CLUSTER_DIR is not set: run cluster/run.sh")
	}
	count := 2
	if n := os.Getenv("CLUSTER_NODES"); n != "" {
		var err error
		count, err = strconv.Atoi(n)
		if err != nil {
			t.Fatal(err)
		}
	}
	c := start(t, dir, count)
	values := m{
		"image":    m{"repository": image, "tag": "1"},
		"database": m{"url": c.database()},
		"service":  m{"type": "NodePort"},
		"node": m{
			"maxUnavailable": 1,
			"config":         m{"rootfs": m{"default": m{"dir": backendtest.Rootfs(t), "oci": nil}}},
		},
	}
	c.volumes()
	c.install(values)
	c.checkInstalled()
	jails := c.createJails(2 * count)
	c.replacePod("node-1", jails)
	c.killDaemon("node-2", jails)

	values["image"] = m{"repository": image, "tag": "2"}
	traffic := c.use(jails, 1)
	c.upgrade(values)
	traffic.stop()
	for _, n := range c.fleet() {
		if n.Version != "next" {
			t.Errorf("node %s has version %s after the update", n.Name, n.Version)
		}
	}

	before := traffic.last
	c.uninstall()
	c.install(values)
	c.reach()
	for _, j := range jails {
		if n, err := c.count(c.clients[0], j); err != nil || n <= before[j] {
			t.Errorf("jail %s has counted to %d after the chart was removed and installed, %v; and to %d before", j, n, err, before[j])
		}
		if err := c.clients[0].DeleteJail(t.Context(), j); err != nil {
			t.Error(err)
		}
	}
}

// load reads the chart.
func (c *cluster) load() chart.Charter {
	c.Helper()
	read, err := loader.Load("helm/glasshouse")
	if err != nil {
		c.Fatal(err)
	}
	return read
}

// helm returns the configuration of Helm's actions.
func (c *cluster) helm() *action.Configuration {
	c.Helper()
	config := action.NewConfiguration()
	if err := config.Init(c.flags, namespace, "secret"); err != nil {
		c.Fatal(err)
	}
	return config
}

const ready = 4 * time.Minute

func (c *cluster) install(values m) {
	c.Helper()
	i := action.NewInstall(c.helm())
	i.ReleaseName, i.Namespace, i.Timeout, i.WaitStrategy = "glasshouse", namespace, ready, kube.StatusWatcherStrategy
	if _, err := i.RunWithContext(c.Context(), c.load(), values); err != nil {
		c.Fatal(err)
	}
}

// volumes creates local volumes for the front ends.
func (c *cluster) volumes() {
	c.Helper()
	for _, node := range c.nodes[:2] { // there are two front ends
		_, err := c.kube.CoreV1().PersistentVolumes().Create(c.Context(), &core.PersistentVolume{
			ObjectMeta: meta.ObjectMeta{Name: node},
			Spec: core.PersistentVolumeSpec{
				Capacity: core.ResourceList{core.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: []core.PersistentVolumeAccessMode{core.ReadWriteOnce},
				PersistentVolumeSource: core.PersistentVolumeSource{Local: &core.LocalVolumeSource{Path: "/var/lib/volumes/data"}},
				NodeAffinity: &core.VolumeNodeAffinity{Required: &core.NodeSelector{NodeSelectorTerms: []core.NodeSelectorTerm{{
					MatchExpressions: []core.NodeSelectorRequirement{{Key: core.LabelHostname, Operator: core.NodeSelectorOpIn, Values: []string{node}}}}}}},
			},
		}, meta.CreateOptions{})
		if err != nil {
			c.Fatal(err)
		}
	}
}

// checkInstalled checks the fleet in the ways of the notes of the chart.
func (c *cluster) checkInstalled() {
	c.Helper()
	c.reach()
	var names []string
	for _, n := range c.fleet() {
		if n.State != "up" {
			c.Errorf("node %s is %s, want up", n.Name, n.State)
		}
		names = append(names, n.Name)
		if text, err := c.clients[0].At(n.Name).Metrics(c.Context()); err != nil || !bytes.Contains(text, []byte("glasshouse_")) {
			c.Errorf("metrics of %s: %v, %.100s", n.Name, err, text)
		}
	}
	slices.Sort(names)
	if want := append([]string{"glasshouse-front-0", "glasshouse-front-1"}, c.nodes...); !slices.Equal(names, want) {
		c.Errorf("the fleet has nodes %q, want %q", names, want)
	}
	for _, node := range c.nodes {
		pod := c.podOf(node).Name
		if log, err := c.kube.CoreV1().Pods(namespace).GetLogs(pod, &core.PodLogOptions{}).DoRaw(c.Context()); err != nil || len(log) == 0 {
			c.Errorf("the log of %s: %q, %v", pod, log, err)
		}
		if out, err := c.exec(pod, "/var/lib/glasshouse/host/current/bin/glasshouse", "health"); err != nil {
			c.Errorf("a command on %s: %v\n%s", node, err, out)
		}
	}
}

// reach creates a token and clients of the front ends, at the addresses of the hosts.
func (c *cluster) reach() {
	c.Helper()
	out, err := c.exec("glasshouse-front-0", "glasshouse", "token", "create", "--role", "admin", "me")
	token := regexp.MustCompile(`gh_\S+`).FindString(out)
	if err != nil || token == "" {
		c.Fatalf("token create: %v\n%s", err, out)
	}
	service, err := c.kube.CoreV1().Services(namespace).Get(c.Context(), "glasshouse", meta.GetOptions{})
	if err != nil {
		c.Fatal(err)
	}
	c.clients = nil
	for n := range c.nodes {
		one, err := client.New(client.Options{Addr: fmt.Sprintf("http://%s:%d", address(n+1), service.Spec.Ports[0].NodePort), Token: token})
		if err != nil {
			c.Fatal(err)
		}
		c.clients = append(c.clients, one)
	}
}

// fleet returns the nodes of the fleet.
func (c *cluster) fleet() (all []wire.Node) {
	c.Helper()
	for n, err := range c.clients[0].Nodes(c.Context()) {
		if err != nil {
			c.Fatal(err)
		}
		all = append(all, n)
	}
	return all
}

// podOf returns the Pod of the daemon of a node, which does not end.
func (c *cluster) podOf(node string) core.Pod {
	c.Helper()
	pods, err := c.kube.CoreV1().Pods(namespace).List(c.Context(), meta.ListOptions{LabelSelector: "app.kubernetes.io/component=node"})
	if err != nil {
		c.Fatal(err)
	}
	for _, p := range pods.Items {
		if p.Spec.NodeName == node && p.DeletionTimestamp == nil {
			return p
		}
	}
	return core.Pod{}
}

// createJails creates jails whose processes count.
func (c *cluster) createJails(n int) (all []id.Jail) {
	c.Helper()
	for i := range n {
		j, err := c.clients[i%len(c.clients)].CreateJail(c.Context(), wire.CreateJail{Start: true})
		if err != nil {
			c.Fatal(err)
		}
		const counter = `i=0; while :; do i=$((i+1)); echo $i > /tmp/count.new; mv /tmp/count.new /tmp/count; sleep 0.02; done`
		if _, err := c.clients[0].Exec(c.Context(), j.ID, wire.ExecRequest{Cmd: "(trap '' HUP; " + counter + ") >/dev/null 2>&1 & sleep 0.5"}); err != nil {
			c.Fatal(err)
		}
		all = append(all, j.ID)
	}
	used := 0
	for _, n := range c.fleet() {
		if n.Jails > 0 {
			used++
		}
	}
	if used != len(c.nodes) {
		c.Errorf("%d nodes have jails, want all %d", used, len(c.nodes))
	}
	return all
}

// count returns how far a jail has counted.
func (c *cluster) count(by *client.Client, j id.Jail) (int, error) {
	x, err := by.Exec(c.Context(), j, wire.ExecRequest{Cmd: "cat /tmp/count"})
	if err != nil {
		return 0, err
	}
	out, _, err := client.Output(x)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(out)))
}

// replacePod deletes the Pod of a node. Jails keep running.
func (c *cluster) replacePod(node string, jails []id.Jail) {
	c.Helper()
	traffic := c.use(jails, 1)
	old := c.podOf(node)
	if err := c.kube.CoreV1().Pods(namespace).Delete(c.Context(), old.Name, meta.DeleteOptions{}); err != nil {
		c.Fatal(err)
	}
	c.untilReady(node, func(p core.Pod) bool { return p.Name != old.Name })
	c.until("the old Pod is gone", time.Minute, func() error {
		_, err := c.kube.CoreV1().Pods(namespace).Get(c.Context(), old.Name, meta.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("Pod %s: %v", old.Name, err)
	})
	traffic.stop()
}

// killDaemon kills the daemon of a node. The kubelet starts it again.
func (c *cluster) killDaemon(node string, jails []id.Jail) {
	c.Helper()
	traffic := c.use(jails, 2) // two front ends have connections to it
	const line = `for p in /proc/[0-9]*; do case $(readlink $p/exe) in /var/lib/glasshouse/host/*/glasshouse) kill -9 ${p#/proc/};; esac; done`
	if out, err := c.exec(c.podOf(node).Name, "sh", "-c", line); err != nil {
		c.Logf("exec: %v\n%s", err, out) // it may end with the container
	}
	c.untilReady(node, func(p core.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount == 1 })
	traffic.stop()
}

// untilReady waits until the Pod of a node is ready and as desired.
func (c *cluster) untilReady(node string, desired func(core.Pod) bool) {
	c.Helper()
	began := time.Now()
	c.until("the Pod of "+node+" is ready", 2*time.Minute, func() error {
		p := c.podOf(node)
		if len(p.Status.ContainerStatuses) == 0 || !p.Status.ContainerStatuses[0].Ready || !desired(p) {
			return fmt.Errorf("Pod %s is %+v", p.Name, p.Status)
		}
		return nil
	})
	c.Logf("the Pod of %s is ready after %v", node, time.Since(began).Round(time.Millisecond))
}

// A traffic is the requests of users for jails, which repeat a request if it fails.
type traffic struct {
	*cluster
	repeats int // of a request at most

	end  chan struct{}
	done sync.WaitGroup
	mu   sync.Mutex

	// +checklocks:mu
	last map[id.Jail]int
	// +checklocks:mu
	sent, repeated int
}

func (c *cluster) use(jails []id.Jail, repeats int) *traffic {
	t := &traffic{cluster: c, repeats: repeats, end: make(chan struct{}), last: map[id.Jail]int{}}
	for _, j := range jails {
		t.done.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-t.end:
					return
				case <-time.After(50 * time.Millisecond):
				}
				t.ask(j, i)
			}
		})
	}
	return t
}

// ask asks a jail for its count, by way of alternating hosts.
func (t *traffic) ask(j id.Jail, i int) {
	var errs []error
	for {
		n, err := t.count(t.clients[(i+len(errs))%len(t.clients)], j)
		if err == nil {
			t.add(j, n, errs)
			return
		}
		errs = append(errs, err)
		if len(errs) > t.repeats {
			t.Errorf("jail %s: %v", j, errs)
			return
		}
	}
}

// add checks and adds an answer, which comes after errors.
func (t *traffic) add(j id.Jail, n int, errs []error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sent++
	if len(errs) > 0 {
		t.repeated++
		t.Logf("jail %s: %v, and then an answer", j, errs)
	}
	if n < t.last[j] {
		t.Errorf("jail %s has counted to %d, and before to %d", j, n, t.last[j])
	}
	t.last[j] = n
}

// stop ends the requests.
func (t *traffic) stop() {
	t.Helper()
	close(t.end)
	t.done.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Logf("of %d requests, %d were repeated", t.sent, t.repeated)
	if t.sent == 0 {
		t.Error("no requests were sent")
	}
}

// upgrade updates the chart.
func (c *cluster) upgrade(values m) {
	c.Helper()
	u := action.NewUpgrade(c.helm())
	u.Namespace, u.Timeout, u.WaitStrategy = namespace, ready, kube.StatusWatcherStrategy
	began := time.Now()
	if _, err := u.RunWithContext(c.Context(), "glasshouse", c.load(), values); err != nil {
		c.Fatal(err)
	}
	c.Logf("the update took %v", time.Since(began).Round(time.Millisecond))
}

// uninstall removes the chart. The Secret with the keys stays.
func (c *cluster) uninstall() {
	c.Helper()
	u := action.NewUninstall(c.helm())
	u.Timeout, u.WaitStrategy = ready, kube.StatusWatcherStrategy
	if _, err := u.Run("glasshouse"); err != nil {
		c.Fatal(err)
	}
	c.until("the Pods are gone", 2*time.Minute, func() error {
		pods, err := c.kube.CoreV1().Pods(namespace).List(c.Context(), meta.ListOptions{})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("there are %d", len(pods.Items))
		}
		return err
	})
	if _, err := c.kube.CoreV1().Secrets(namespace).Get(c.Context(), "glasshouse-keys", meta.GetOptions{}); err != nil {
		c.Errorf("the keys of the fleet: %v", err)
	}
}
