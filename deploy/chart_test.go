// Package deploy tests the Helm chart: that the API of Kubernetes knows all fields of its objects, that
// they fit together, and that the daemons accept their configuration.
package deploy

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"glasshouse/daemon"
)

type m = map[string]any

// kinds has a new object of each kind that the chart creates.
var kinds = map[string]func() meta.Object{
	"v1/ConfigMap":                             func() meta.Object { return &core.ConfigMap{} },
	"v1/Secret":                                func() meta.Object { return &core.Secret{} },
	"v1/Service":                               func() meta.Object { return &core.Service{} },
	"v1/ServiceAccount":                        func() meta.Object { return &core.ServiceAccount{} },
	"apps/v1/DaemonSet":                        func() meta.Object { return &apps.DaemonSet{} },
	"apps/v1/StatefulSet":                      func() meta.Object { return &apps.StatefulSet{} },
	"batch/v1/Job":                             func() meta.Object { return &batch.Job{} },
	"networking.k8s.io/v1/Ingress":             func() meta.Object { return &networking.Ingress{} },
	"networking.k8s.io/v1/NetworkPolicy":       func() meta.Object { return &networking.NetworkPolicy{} },
	"policy/v1/PodDisruptionBudget":            func() meta.Object { return &policy.PodDisruptionBudget{} },
	"rbac.authorization.k8s.io/v1/Role":        func() meta.Object { return &rbac.Role{} },
	"rbac.authorization.k8s.io/v1/RoleBinding": func() meta.Object { return &rbac.RoleBinding{} },
	"monitoring.coreos.com/v1/ServiceMonitor":  func() meta.Object { return &monitoring.ServiceMonitor{} },
	"monitoring.coreos.com/v1/PodMonitor":      func() meta.Object { return &monitoring.PodMonitor{} },
}

// A release is a rendered chart.
type release struct {
	*testing.T
	objects map[string]meta.Object // by kind and name
	notes   string
}

// render renders the chart with values.
func render(values m) (map[string]string, error) {
	chart, err := loader.Load("helm/glasshouse")
	if err != nil {
		return nil, err
	}
	all, err := util.ToRenderValues(chart, values, common.ReleaseOptions{Name: "fleet", Namespace: "agents", Revision: 1, IsInstall: true}, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return engine.Render(chart, all)
}

// install renders the chart, and decodes its objects.
func install(t *testing.T, values m) *release {
	t.Helper()
	files, err := render(values)
	if err != nil {
		t.Fatal(err)
	}
	r := &release{T: t, objects: map[string]meta.Object{}}
	for name, text := range files {
		if filepath.Base(name) == "NOTES.txt" {
			r.notes = text
			continue
		}
		for doc := range strings.SplitSeq(text, "\n---\n") {
			r.decode(name, doc)
		}
	}
	return r
}

func (r *release) decode(file, doc string) {
	r.Helper()
	var head meta.TypeMeta
	if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
		r.Fatalf("%s: %v\n%s", file, err, doc)
	}
	if head.Kind == "" {
		return
	}
	made, ok := kinds[head.APIVersion+"/"+head.Kind]
	if !ok {
		r.Fatalf("%s has an object of unknown kind %s/%s", file, head.APIVersion, head.Kind)
	}
	o := made()
	data, err := yaml.YAMLToJSONStrict([]byte(doc))
	if err != nil {
		r.Fatalf("%s, %s: %v\n%s", file, head.Kind, err, doc)
	}
	// Like the API server, and unlike package yaml, it tells upper and lower case apart.
	unknown, err := kjson.UnmarshalStrict(data, o)
	if err != nil || len(unknown) > 0 {
		r.Fatalf("%s, %s: %v, %v\n%s", file, head.Kind, err, unknown, doc)
	}
	key := head.Kind + " " + o.GetName()
	if r.objects[key] != nil {
		r.Errorf("two objects %s", key)
	}
	if errs := validation.IsDNS1123Subdomain(o.GetName()); len(errs) > 0 {
		r.Errorf("%s: %v", key, errs)
	}
	for k, v := range o.GetLabels() {
		if errs := slices.Concat(validation.IsQualifiedName(k), validation.IsValidLabelValue(v)); len(errs) > 0 {
			r.Errorf("%s: label %s=%s: %v", key, k, v, errs)
		}
	}
	r.objects[key] = o
}

// get returns an object.
func get[T meta.Object](r *release, key string) T {
	r.Helper()
	o, ok := r.objects[key].(T)
	if !ok {
		r.Fatalf("the chart has no %s, only %q", key, slices.Sorted(maps.Keys(r.objects)))
	}
	return o
}

// pods are the templates of Pods, by their objects.
func (r *release) pods() map[string]core.PodTemplateSpec {
	all := map[string]core.PodTemplateSpec{}
	for key, o := range r.objects {
		switch o := o.(type) {
		case *apps.DaemonSet:
			all[key] = o.Spec.Template
		case *apps.StatefulSet:
			all[key] = o.Spec.Template
			for _, c := range o.Spec.VolumeClaimTemplates {
				p := all[key]
				p.Spec.Volumes = append(p.Spec.Volumes, core.Volume{Name: c.Name, VolumeSource: core.VolumeSource{PersistentVolumeClaim: &core.PersistentVolumeClaimVolumeSource{ClaimName: c.Name}}})
				all[key] = p
			}
		case *batch.Job:
			all[key] = o.Spec.Template
		}
	}
	return all
}

// check checks that the objects of a release refer to each other. given are the Secrets of the user.
func (r *release) check(given ...string) {
	r.Helper()
	secret := func(where, name string) {
		if r.objects["Secret "+name] == nil && !slices.Contains(given, name) && name != "fleet-glasshouse-keys" { // the Job creates it
			r.Errorf("%s uses the Secret %s, which does not exist", where, name)
		}
	}
	for key, p := range r.pods() {
		volumes := map[string]bool{}
		for _, v := range p.Spec.Volumes {
			if volumes[v.Name] {
				r.Errorf("%s has two volumes %s", key, v.Name)
			}
			volumes[v.Name] = true
			if v.Secret != nil {
				secret(key, v.Secret.SecretName)
			}
			if v.Projected == nil {
				continue
			}
			for _, s := range v.Projected.Sources {
				if s.Secret != nil {
					secret(key, s.Secret.Name)
				}
				if s.ConfigMap != nil {
					get[*core.ConfigMap](r, "ConfigMap "+s.ConfigMap.Name)
				}
			}
		}
		if sa := p.Spec.ServiceAccountName; sa != "" {
			get[*core.ServiceAccount](r, "ServiceAccount "+sa)
		}
		for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
			r.container(key, p, c, volumes, secret)
		}
	}
	for key, o := range r.objects {
		switch o := o.(type) {
		case *core.Service:
			r.selects(key, labels.SelectorFromSet(o.Spec.Selector), servicePorts(o))
		case *apps.DaemonSet:
			r.selects(key, selector(r, o.Spec.Selector), nil)
		case *apps.StatefulSet:
			r.selects(key, selector(r, o.Spec.Selector), nil)
			get[*core.Service](r, "Service "+o.Spec.ServiceName)
		case *policy.PodDisruptionBudget:
			r.selects(key, selector(r, o.Spec.Selector), nil)
		case *networking.NetworkPolicy:
			var ports []string
			for _, in := range o.Spec.Ingress {
				for _, p := range in.Ports {
					ports = append(ports, p.Port.String())
				}
			}
			r.selects(key, selector(r, &o.Spec.PodSelector), ports)
		case *networking.Ingress:
			for _, rule := range o.Spec.Rules {
				for _, p := range rule.HTTP.Paths {
					s := get[*core.Service](r, "Service "+p.Backend.Service.Name)
					if !slices.ContainsFunc(s.Spec.Ports, func(q core.ServicePort) bool { return q.Name == p.Backend.Service.Port.Name }) {
						r.Errorf("%s: Service %s has no port %s", key, s.Name, p.Backend.Service.Port.Name)
					}
				}
			}
		case *monitoring.ServiceMonitor:
			found := 0
			for _, other := range r.objects {
				if s, ok := other.(*core.Service); ok && selector(r, &o.Spec.Selector).Matches(labels.Set(s.Labels)) {
					found++
				}
			}
			if found != 1 {
				r.Errorf("%s selects %d Services, want one", key, found)
			}
		case *monitoring.PodMonitor:
			r.selects(key, selector(r, &o.Spec.Selector), []string{*o.Spec.PodMetricsEndpoints[0].Port})
		}
	}
}

func (r *release) container(key string, p core.PodTemplateSpec, c core.Container, volumes map[string]bool, secret func(where, name string)) {
	r.Helper()
	for _, v := range c.VolumeMounts {
		if !volumes[v.Name] {
			r.Errorf("%s mounts %s, which is no volume", key, v.Name)
		}
	}
	for _, e := range c.Env {
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
			secret(key, e.ValueFrom.SecretKeyRef.Name)
		}
	}
	if c.Image == "" || strings.HasSuffix(c.Image, ":") {
		r.Errorf("%s has the image %q", key, c.Image)
	}
	for _, probe := range []*core.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		if probe == nil {
			continue
		}
		port := ""
		switch {
		case probe.Exec != nil && slices.Contains(c.Args, "--host"):
			r.Errorf("%s has a probe by a command, which would be executed on the host", key)
		case probe.HTTPGet != nil && probe.HTTPGet.Host == "": // or else it is of the host
			port = probe.HTTPGet.Port.String()
		case probe.TCPSocket != nil:
			port = probe.TCPSocket.Port.String()
		}
		if port != "" && !slices.ContainsFunc(c.Ports, func(q core.ContainerPort) bool { return q.Name == port }) {
			r.Errorf("%s probes port %s, which the container does not have", key, port)
		}
	}
	for _, q := range c.Ports {
		if p.Spec.HostNetwork && q.HostPort != q.ContainerPort {
			r.Errorf("%s: port %s of the host is %d, and of the container %d", key, q.Name, q.HostPort, q.ContainerPort)
		}
	}
}

func servicePorts(s *core.Service) (names []string) {
	for _, p := range s.Spec.Ports {
		names = append(names, p.TargetPort.String())
	}
	return names
}

func selector(r *release, s *meta.LabelSelector) labels.Selector {
	r.Helper()
	got, err := meta.LabelSelectorAsSelector(s)
	if err != nil {
		r.Fatal(err)
	}
	return got
}

// selects checks that a selector matches the Pods of one object, which have the ports.
func (r *release) selects(key string, s labels.Selector, ports []string) {
	r.Helper()
	found := 0
	for _, p := range r.pods() {
		if !s.Matches(labels.Set(p.Labels)) {
			continue
		}
		found++
		for _, port := range ports {
			if !slices.ContainsFunc(p.Spec.Containers[0].Ports, func(q core.ContainerPort) bool { return q.Name == port }) {
				r.Errorf("%s uses port %s, which its Pods do not have", key, port)
			}
		}
	}
	if found != 1 {
		r.Errorf("%s selects the Pods of %d objects, want one", key, found)
	}
}

// accept returns the configuration of daemons as they read it.
func (r *release) accept(component string) daemon.Config {
	r.Helper()
	c := get[*core.ConfigMap](r, "ConfigMap fleet-glasshouse-"+component)
	file := filepath.Join(r.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(c.Data["config.yaml"]), 0o600); err != nil {
		r.Fatal(err)
	}
	cfg := daemon.NewConfig(0, "/root")
	if err := cfg.ReadFile(file); err != nil {
		r.Fatalf("%v\n%s", err, c.Data["config.yaml"])
	}
	env := map[string]string{"GLASSHOUSE_GATEWAY_DB": "postgres://db/g", "GLASSHOUSE_FLEET_NAME": "n", "GLASSHOUSE_FLEET_ADDRESS": "fd00::1"}
	cfg.ReadEnv(func(k string) string { return env[k] })
	if err := cfg.Validate(); err != nil {
		r.Fatalf("%s: %v\n%s", component, err, c.Data["config.yaml"])
	}
	if cfg.Fleet.Keys == "" || cfg.Fleet.Address == "" || cfg.Gateway.DB == "" {
		r.Errorf("%s: fleet = %+v, database %q", component, cfg.Fleet, cfg.Gateway.DB)
	}
	return cfg
}

func TestDefaults(t *testing.T) {
	r := install(t, m{"database": m{"url": "postgres://g:p@db.agents.svc.cluster.local/g"}})
	r.check()
	node, front := r.accept("node"), r.accept("front")
	if node.Fleet.Jails != "" || front.Fleet.Jails != "none" || front.Listen != "0.0.0.0:8082" || !slices.Contains(front.Hosts, "fleet-glasshouse.agents.svc") {
		t.Errorf("node %+v, front end %+v, %q", node.Fleet, front.Fleet, front.Hosts)
	}
	if s := get[*core.Secret](r, "Secret fleet-glasshouse-database"); s.StringData["url"] != "postgres://g:p@db.agents.svc.cluster.local/g" {
		t.Errorf("database = %q", s.StringData)
	}
	p := get[*apps.DaemonSet](r, "DaemonSet fleet-glasshouse-node").Spec.Template.Spec
	if c := p.Containers[0]; !p.HostPID || !p.HostNetwork || !*c.SecurityContext.Privileged || !slices.Equal(c.Args, []string{"serve", "--host", "--config", "/run/glasshouse-settings/config.yaml"}) {
		t.Errorf("the node does not enter its host: %+v", p)
	}
	// Commands that kubectl executes reach the daemons.
	for component, dirs := range map[string][]string{"node": {"/run/glasshouse-settings"}, "front": {"/run/glasshouse-settings", front.Data, "/tmp"}} {
		for key, pod := range r.pods() {
			if !strings.HasSuffix(key, "-"+component) {
				continue
			}
			c := pod.Spec.Containers[0]
			for _, dir := range dirs {
				if !slices.ContainsFunc(c.VolumeMounts, func(v core.VolumeMount) bool { return v.MountPath == dir }) {
					t.Errorf("%s does not mount %s", key, dir)
				}
			}
			socket := map[string]string{"node": node.Socket.Path, "front": front.Socket.Path}[component]
			if !slices.Contains(c.Env, core.EnvVar{Name: "GLASSHOUSE_ADDR", Value: "unix://" + socket}) {
				t.Errorf("%s has the environment %+v, want the socket %s in it", key, c.Env, socket)
			}
		}
	}
	f := get[*apps.StatefulSet](r, "StatefulSet fleet-glasshouse-front").Spec.Template.Spec
	if c := f.Containers[0].SecurityContext; f.HostPID || f.HostNetwork || !*f.SecurityContext.RunAsNonRoot || *c.AllowPrivilegeEscalation || !*c.ReadOnlyRootFilesystem || c.Privileged != nil {
		t.Errorf("the front end has rights: %+v, %+v", f.SecurityContext, c)
	}
	// Only the Job has credentials of the cluster, and may only create Secrets.
	for key, pod := range r.pods() {
		auto := pod.Spec.AutomountServiceAccountToken
		if want := strings.HasPrefix(key, "Job"); auto == nil || *auto != want {
			t.Errorf("%s has credentials of the cluster: %v, want %t", key, auto, want)
		}
	}
	rules := get[*rbac.Role](r, "Role fleet-glasshouse-init").Rules
	if len(rules) != 1 || !slices.Equal(rules[0].Resources, []string{"secrets"}) || !slices.Equal(rules[0].Verbs, []string{"create"}) {
		t.Errorf("rules = %+v", rules)
	}
	if !strings.Contains(r.notes, "fleet-glasshouse-front-0") || !strings.Contains(r.notes, "fleet-glasshouse-keys") {
		t.Errorf("notes = %s", r.notes)
	}
}

// allOptions sets each value.
var allOptions = m{
	"image":            m{"repository": "registry.example.com/glasshouse", "tag": "1.2.3"},
	"imagePullSecrets": []any{m{"name": "pull"}},
	"database":         m{"existingSecret": "db", "key": "uri"},
	"objects":          m{"url": "s3://bucket/fleet?endpoint=https://minio:9000&region=x", "credentialsSecret": "s3"},
	"keys":             m{"existingSecret": "keys"},
	"node": m{"data": "/data/glasshouse", "port": 9443, "fetchCRIU": true, "config": m{"rootfs": m{"default": m{"oci": "debian:13"}}, "pool": m{"size": 3}},
		"nodeSelector": m{"agents": "yes"}, "tolerations": []any{m{"operator": "Exists"}}, "annotations": m{"a": "b"}, "maxUnavailable": 2,
		"affinity": m{"nodeAffinity": m{"requiredDuringSchedulingIgnoredDuringExecution": m{"nodeSelectorTerms": []any{m{"matchExpressions": []any{m{"key": "x", "operator": "Exists"}}}}}}}},
	"front": m{"replicas": 3, "volume": m{"storageClassName": "fast"}, "config": m{"log": m{"format": "json"}}, "nodeSelector": m{"c": "d"},
		"tolerations": []any{m{"operator": "Exists"}}, "annotations": m{"a": "b"}, "affinity": m{"podAffinity": m{}}},
	"tls":            m{"existingSecret": "cert"},
	"e2b":            m{"enabled": true, "domain": "sandboxes.example.com"},
	"service":        m{"type": "LoadBalancer", "port": 443, "annotations": m{"a": "b"}},
	"ingress":        m{"enabled": true, "className": "nginx", "host": "Agents.example.com", "tlsSecret": "tls", "e2bTLSSecret": "wild", "annotations": m{"a": "b"}},
	"networkPolicy":  m{"clients": []any{m{"namespaceSelector": m{"matchLabels": m{"x": "y"}}}}, "nodes": []any{"10.0.0.0/8"}},
	"serviceMonitor": m{"enabled": true, "tokenSecret": "metrics", "labels": m{"release": "prometheus"}},
}

func TestAllOptions(t *testing.T) {
	r := install(t, allOptions)
	r.check("db", "s3", "keys", "cert")
	node, front := r.accept("node"), r.accept("front")
	if node.Data != "/data/glasshouse" || node.Pool.Size != 3 || node.Rootfs.Default.OCI != "debian:13" || node.Fleet.Listen != "0.0.0.0:9443" || node.E2B.Domain != "sandboxes.example.com" {
		t.Errorf("node = %+v", node)
	}
	if front.Log.Format != "json" || front.TLS.Cert == "" || front.Insecure || front.E2B.Listen == "" || front.E2B.TLS.Cert == "" || front.Approvals.Links != "https://Agents.example.com/answers/" || !slices.Contains(front.Hosts, "agents.example.com") {
		t.Errorf("front end = %+v", front)
	}
	for _, cfg := range []daemon.Config{node, front} {
		if !strings.HasPrefix(cfg.Gateway.Objects, "s3://bucket/fleet?") {
			t.Errorf("objects = %q", cfg.Gateway.Objects)
		}
	}
	if r.objects["Secret fleet-glasshouse-database"] != nil || r.objects["Job fleet-glasshouse-init"] != nil {
		t.Error("there are objects for Secrets that exist")
	}
	pm := get[*monitoring.PodMonitor](r, "PodMonitor fleet-glasshouse-node").Spec.PodMetricsEndpoints[0]
	if last := pm.RelabelConfigs[len(pm.RelabelConfigs)-1]; *last.Replacement != "fleet-glasshouse.agents.svc:443" || pm.Scheme == nil || !strings.EqualFold(string(*pm.Scheme), "https") {
		t.Errorf("metrics of nodes are read from %+v", pm)
	}
}

func TestVariants(t *testing.T) {
	db := m{"url": "postgres://db/g"}
	for name, values := range map[string]m{
		"front ends alone":    {"database": db, "node": m{"enabled": false}, "serviceMonitor": m{"enabled": true, "tokenSecret": "t"}},
		"no volumes":          {"database": db, "front": m{"volume": m{"enabled": false}}},
		"no network policies": {"database": db, "networkPolicy": m{"enabled": false}},
		"E2B without TLS":     {"database": db, "e2b": m{"enabled": true, "domain": "x.example.com"}},
		"Ingress without TLS": {"database": db, "ingress": m{"enabled": true, "host": "a.example.com"}, "e2b": m{"enabled": true, "domain": "x.example.com"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := install(t, values)
			r.check("t")
			r.accept("front")
		})
	}
}

// The kubelet checks a node where it listens.
func TestHealthOfNode(t *testing.T) {
	for listen, want := range map[string]string{
		"127.0.0.1:8082": "http 127.0.0.1 8082",
		"0.0.0.0:9000":   "https 127.0.0.1 9000",
		"[::]:9000":      "https 127.0.0.1 9000",
		":9000":          "https 127.0.0.1 9000",
		"[::1]:80":       "http ::1 80",
		"10.0.0.1:443":   "https 10.0.0.1 443",
	} {
		config := m{}
		if strings.HasPrefix(want, "https") {
			config["tls"] = m{"cert": "/c", "key": "/k"}
		}
		r := install(t, m{"database": m{"url": "postgres://db/g"}, "node": m{"listen": listen, "config": config}})
		c := get[*apps.DaemonSet](r, "DaemonSet fleet-glasshouse-node").Spec.Template.Spec.Containers[0]
		for _, probe := range []*core.Probe{c.StartupProbe, c.ReadinessProbe} {
			g := probe.HTTPGet
			if got := fmt.Sprintf("%s %s %d", strings.ToLower(string(g.Scheme)), g.Host, g.Port.IntVal); got != want || g.Path != "/health/ready" {
				t.Errorf("listen %s: the probe is %s %s, want %s", listen, got, g.Path, want)
			}
		}
	}
}

func TestRefusedValues(t *testing.T) {
	db := m{"url": "postgres://db/g"}
	for want, values := range map[string]m{
		"set either database.url or database.existingSecret": {},
		"either database.url":                                {"database": m{"url": "postgres://db/g", "existingSecret": "db"}},
		"e2b.enabled requires e2b.domain":                    {"database": db, "e2b": m{"enabled": true}},
		"ingress.enabled requires ingress.host":              {"database": db, "ingress": m{"enabled": true}},
		"serviceMonitor.enabled requires":                    {"database": db, "serviceMonitor": m{"enabled": true}},
		"replica":                                            {"database": db, "front": m{"replica": 3}},
		"/objects/url":                                       {"database": db, "objects": m{"url": "file:///mnt"}},
		"/front/replicas":                                    {"database": db, "front": m{"replicas": 0}},
		"/node/listen":                                       {"database": db, "node": m{"listen": "localhost"}},
		"set node.listen":                                    {"database": db, "node": m{"config": m{"listen": ""}}},
	} {
		if _, err := render(values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("values %v: %v, want an error with %q", fmt.Sprint(values), err, want)
		}
	}
}
