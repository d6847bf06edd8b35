//go:build cluster

package deploy

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	capi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/tools/remotecommand"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pkiutil"

	"glasshouse/api/client"
	"glasshouse/store/postgrestest"
)

// The addresses of the cluster. The test itself has the first one of the hosts.
const (
	control  = "10.99.0.1"
	services = "10.97.0.0/16"
)

// namespace is the one of the chart.
const namespace = "agents"

// image is the reference of the image without its tag.
const image = "glasshouse.test/glasshouse"

// A cluster is a Kubernetes cluster in the namespaces of this process; see cluster/run.sh.
type cluster struct {
	*testing.T
	dir   string // of run.sh
	ca    *x509.Certificate
	key   crypto.Signer
	kube  *kubernetes.Clientset
	rest  *rest.Config
	flags *genericclioptions.ConfigFlags
	nodes []string

	clients []*client.Client // of the fleet, by host; see reach
}

// start starts a cluster.
func start(t *testing.T, dir string, nodes int) *cluster {
	t.Helper()
	c := &cluster{T: t, dir: dir}
	t.Cleanup(c.showLogs)
	c.buildImages()
	c.connect()
	c.certify()
	c.startControl()
	for _, name := range []string{"data", namespace} {
		if _, err := c.kube.CoreV1().Namespaces().Create(t.Context(), &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: name}}, meta.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c.startNodes(nodes)
	return c
}

// connect creates the network of the hosts.
func (c *cluster) connect() {
	c.Helper()
	c.run("mount", "-t", "tmpfs", "tmpfs", "/run")
	for _, line := range []string{
		"link set lo up",
		"link add hosts type bridge",
		"link set hosts up",
		"addr add " + control + "/24 dev hosts",
	} {
		c.run("ip", strings.Fields(line)...)
	}
	c.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
}

// run executes a program, and fails the test if it fails.
func (c *cluster) run(program string, args ...string) {
	c.Helper()
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		c.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
}

// start starts a program of the cluster, which runs until the end of the test, with its output in a file.
func (c *cluster) start(log, program string, args ...string) {
	c.Helper()
	out, err := os.Create(filepath.Join(c.dir, log+".log"))
	if err != nil {
		c.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		c.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		cmd.Wait()
		out.Close()
		close(ended)
	}()
	c.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
	})
}

// showLogs shows the ends of the logs of all programs if the test has failed.
func (c *cluster) showLogs() {
	if !c.Failed() {
		return
	}
	for _, pattern := range []string{"*.log", "*/*.log"} {
		found, err := filepath.Glob(filepath.Join(c.dir, pattern))
		if err != nil {
			c.Log(err)
		}
		for _, path := range found {
			text, err := os.ReadFile(path)
			c.Logf("%s, %v:\n%s", path, err, text[max(0, len(text)-2000):])
		}
	}
	if c.kube != nil {
		c.describe()
	}
}

func (c *cluster) program(name string) string { return filepath.Join(c.dir, "bin", name) }

// until waits until a condition holds.
func (c *cluster) until(what string, limit time.Duration, holds func() error) {
	c.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := holds()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			c.Fatalf("%s: %v after %v", what, err, limit)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// buildImages writes the image, that of the next version, and that of the containers which hold the network
// namespaces of Pods.
func (c *cluster) buildImages() {
	c.Helper()
	found, err := filepath.Glob(filepath.Join(c.dir, "glasshouse_*.oci.tar"))
	if err != nil || len(found) != 1 {
		c.Fatalf("images in %s: %q, %v", c.dir, found, err)
	}
	old, err := tarball.ImageFromPath(found[0], nil)
	if err != nil {
		c.Fatal(err)
	}
	program, err := os.ReadFile(filepath.Join(c.dir, "next"))
	if err != nil {
		c.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		err := errors.Join(
			w.WriteHeader(&tar.Header{Name: "usr/bin/glasshouse", Mode: 0o755, Size: int64(len(program)), Typeflag: tar.TypeReg}),
			func() error { _, err := w.Write(program); return err }(),
			w.Close())
		return io.NopCloser(&b), err
	})
	if err != nil {
		c.Fatal(err)
	}
	next, err := mutate.AppendLayers(old, layer)
	if err != nil {
		c.Fatal(err)
	}
	pause, err := mutate.Config(old, v1.Config{Entrypoint: []string{"/bin/sleep", "infinity"}, Env: []string{"PATH=/bin"}})
	if err != nil {
		c.Fatal(err)
	}
	all := map[name.Reference]v1.Image{}
	for ref, i := range map[string]v1.Image{image + ":1": old, image + ":2": next, "glasshouse.test/pause:1": pause} {
		tag, err := name.NewTag(ref)
		if err != nil {
			c.Fatal(err)
		}
		all[tag] = i
	}
	if err := os.Mkdir(filepath.Join(c.dir, "images"), 0o755); err != nil {
		c.Fatal(err)
	}
	if err := tarball.MultiRefWriteToFile(filepath.Join(c.dir, "images", "all.tar"), all); err != nil {
		c.Fatal(err)
	}
}

// certify creates the authority of the cluster and the certificates of the API server.
func (c *cluster) certify() {
	c.Helper()
	var err error
	c.ca, c.key, err = pkiutil.NewCertificateAuthority(&pkiutil.CertConfig{Config: certutil.Config{CommonName: "cluster"}})
	if err != nil {
		c.Fatal(err)
	}
	if err := pkiutil.WriteCert(c.dir, "ca", c.ca); err != nil {
		c.Fatal(err)
	}
	if err := pkiutil.WriteKey(c.dir, "ca", c.key); err != nil {
		c.Fatal(err)
	}
	names := []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
	c.certificate(c.dir, "apiserver", certutil.Config{CommonName: "kube-apiserver", Usages: serverAuth,
		AltNames: certutil.AltNames{DNSNames: names, IPs: []net.IP{net.ParseIP(control), net.ParseIP("10.97.0.1"), net.ParseIP("127.0.0.1")}}})
	c.certificate(c.dir, "kubelet-client", certutil.Config{CommonName: "kube-apiserver", Organization: []string{"system:masters"}, Usages: clientAuth})
	c.certificate(c.dir, "accounts", certutil.Config{CommonName: "accounts", Usages: clientAuth}) // only its key is used
	c.kubeconfig("admin", "admin", "system:masters")
}

var (
	serverAuth = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	clientAuth = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
)

// certificate writes a certificate and its key.
func (c *cluster) certificate(dir, name string, config certutil.Config) {
	c.Helper()
	cert, key, err := pkiutil.NewCertAndKey(c.ca, c.key, &pkiutil.CertConfig{Config: config})
	if err != nil {
		c.Fatal(err)
	}
	if err := pkiutil.WriteCertAndKey(dir, name, cert, key); err != nil {
		c.Fatal(err)
	}
}

// kubeconfig writes DIR/kubeconfig for a user, and returns the directory.
func (c *cluster) kubeconfig(dir, user, group string) string {
	c.Helper()
	dir = filepath.Join(c.dir, dir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		c.Fatal(err)
	}
	c.certificate(dir, "client", certutil.Config{CommonName: user, Organization: []string{group}, Usages: clientAuth})
	config := capi.NewConfig()
	config.Clusters["c"] = &capi.Cluster{Server: "https://" + control + ":6443", CertificateAuthority: filepath.Join(c.dir, "ca.crt")}
	config.AuthInfos["u"] = &capi.AuthInfo{ClientCertificate: filepath.Join(dir, "client.crt"), ClientKey: filepath.Join(dir, "client.key")}
	config.Contexts["x"] = &capi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*config, filepath.Join(dir, "kubeconfig")); err != nil {
		c.Fatal(err)
	}
	return dir
}

// startControl starts the control plane and the name server.
func (c *cluster) startControl() {
	c.Helper()
	file := func(name string) string { return filepath.Join(c.dir, name) }
	admin := file("admin/kubeconfig")
	c.start("etcd", c.program("etcd"), "--data-dir="+file("etcd"), "--unsafe-no-fsync", "--log-level=warn")
	c.start("apiserver", c.program("kube-apiserver"), "--etcd-servers=http://127.0.0.1:2379", "--bind-address=0.0.0.0", "--advertise-address="+control,
		"--tls-cert-file="+file("apiserver.crt"), "--tls-private-key-file="+file("apiserver.key"), "--client-ca-file="+file("ca.crt"),
		"--kubelet-client-certificate="+file("kubelet-client.crt"), "--kubelet-client-key="+file("kubelet-client.key"), "--kubelet-certificate-authority="+file("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+file("accounts.key"), "--service-account-signing-key-file="+file("accounts.key"),
		"--service-cluster-ip-range="+services, "--kubelet-preferred-address-types=InternalIP", "--authorization-mode=Node,RBAC", "--allow-privileged")
	var err error
	c.rest, err = clientcmd.BuildConfigFromFlags("", admin)
	if err != nil {
		c.Fatal(err)
	}
	c.rest.QPS, c.rest.Burst = 100, 100
	c.kube, err = kubernetes.NewForConfig(c.rest)
	if err != nil {
		c.Fatal(err)
	}
	c.flags = genericclioptions.NewConfigFlags(false)
	c.flags.KubeConfig = &admin
	space := namespace
	c.flags.Namespace = &space
	c.until("the API server is ready", time.Minute, func() error {
		_, err := c.kube.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(c.Context())
		return err
	})
	c.start("controllers", c.program("kube-controller-manager"), "--kubeconfig="+admin, "--service-account-private-key-file="+file("accounts.key"),
		"--root-ca-file="+file("ca.crt"), "--leader-elect=false")
	c.start("scheduler", c.program("kube-scheduler"), "--kubeconfig="+admin, "--leader-elect=false")
	c.write("Corefile", fmt.Sprintf("cluster.local {\n bind %s\n kubernetes cluster.local {\n  kubeconfig %s x\n }\n}\n", control, admin))
	c.start("names", c.program("coredns"), "-conf", file("Corefile"))
}

func (c *cluster) write(name, text string) {
	c.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o644); err != nil {
		c.Fatal(err)
	}
}

// address returns the address of a node.
func address(n int) string { return fmt.Sprintf("10.99.0.%d", 10+n) }

// startNodes starts nodes, and waits until they are ready.
func (c *cluster) startNodes(count int) {
	c.Helper()
	for n := 1; n <= count; n++ {
		node := fmt.Sprintf("node-%d", n)
		c.nodes = append(c.nodes, node)
		for _, line := range []string{
			"netns add NODE",
			"link add NODE type veth peer name eth0 netns NODE",
			"link set NODE master hosts up",
			"-n NODE link set lo up",
			"-n NODE addr add " + address(n) + "/24 dev eth0",
			"-n NODE link set eth0 up",
			"-n NODE route add default via " + control,
			fmt.Sprintf("route add 10.98.%d.0/24 via %s", n, address(n)),
		} {
			c.run("ip", strings.Fields(strings.ReplaceAll(line, "NODE", node))...)
		}
		dir := c.kubeconfig(node, "system:node:"+node, "system:nodes")
		c.certificate(dir, "kubelet", certutil.Config{CommonName: node, Usages: serverAuth,
			AltNames: certutil.AltNames{DNSNames: []string{node}, IPs: []net.IP{net.ParseIP(address(n))}}})
		replace := strings.NewReplacer("DIR", c.dir, "NODE", node, "CONTROL", control, "NUMBER", strconv.Itoa(n)).Replace
		c.write(node+"/containerd.toml", replace(containerdConfig))
		c.write(node+"/kubelet.yaml", replace(kubeletConfig))
		c.write(node+"/resolv.conf", "nameserver "+control+"\n")
		if err := os.Mkdir(filepath.Join(dir, "cni"), 0o755); err != nil {
			c.Fatal(err)
		}
		c.write(node+"/cni/net.conflist", replace(networkConfig))
		script, err := filepath.Abs("cluster/node.sh")
		if err != nil {
			c.Fatal(err)
		}
		c.start(node, script, node, address(n))
	}
	for _, node := range c.nodes {
		c.until(node+" is ready", time.Minute, func() error {
			n, err := c.kube.CoreV1().Nodes().Get(c.Context(), node, meta.GetOptions{})
			if err != nil {
				return err
			}
			for _, cond := range n.Status.Conditions {
				if cond.Type == core.NodeReady && cond.Status == core.ConditionTrue {
					return nil
				}
			}
			return fmt.Errorf("its conditions are %+v", n.Status.Conditions)
		})
	}
}

const containerdConfig = `version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
address = "/run/containerd/containerd.sock"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "glasshouse.test/pause:1"
[plugins.'io.containerd.cri.v1.runtime']
disable_apparmor = true
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["DIR/bin"]
conf_dir = "DIR/NODE/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false
`

// The feature gate lets the kubelet start where it cannot change kernel settings and resource limits.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: DIR/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: DIR/NODE/kubelet.crt
tlsPrivateKeyFile: DIR/NODE/kubelet.key
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
featureGates: {KubeletInUserNamespace: true}
clusterDomain: cluster.local
clusterDNS: [CONTROL]
resolvConf: DIR/NODE/resolv.conf
volumePluginDir: /var/lib/kubelet/plugins
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 1Mi, nodefs.available: 0%, imagefs.available: 0%, nodefs.inodesFree: 0%}
`

const networkConfig = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{
  "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.98.NUMBER.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
`

// database starts PostgreSQL, which the cluster reaches as the Service postgres in the namespace data, and
// returns the URL of a database.
func (c *cluster) database() string {
	c.Helper()
	port := int32(5432)
	if _, err := c.kube.CoreV1().Services("data").Create(c.Context(), &core.Service{ObjectMeta: meta.ObjectMeta{Name: "postgres"},
		Spec: core.ServiceSpec{Ports: []core.ServicePort{{Port: port}}}}, meta.CreateOptions{}); err != nil {
		c.Fatal(err)
	}
	if _, err := c.kube.DiscoveryV1().EndpointSlices("data").Create(c.Context(), &discovery.EndpointSlice{
		ObjectMeta:  meta.ObjectMeta{Name: "postgres", Labels: map[string]string{discovery.LabelServiceName: "postgres"}},
		AddressType: discovery.AddressTypeIPv4, Endpoints: []discovery.Endpoint{{Addresses: []string{control}}}, Ports: []discovery.EndpointPort{{Port: &port}},
	}, meta.CreateOptions{}); err != nil {
		c.Fatal(err)
	}
	local, err := url.Parse(postgrestest.Start(c.T).URL(c.T))
	if err != nil {
		c.Fatal(err)
	}
	listener, err := net.Listen("tcp", fmt.Sprintf("%s:%d", control, port))
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go pipe(conn, filepath.Join(local.Query().Get("host"), ".s.PGSQL.5432"))
		}
	}()
	return "postgres://postgres@postgres.data.svc.cluster.local" + local.Path + "?sslmode=disable"
}

// pipe connects a connection with a unix socket.
func pipe(a net.Conn, socket string) {
	defer a.Close()
	b, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	defer b.Close()
	var g sync.WaitGroup
	g.Go(func() { io.Copy(a, b); a.Close() })
	io.Copy(b, a)
	b.Close()
	g.Wait()
}

// describe logs the Pods, their logs and the events of the cluster.
func (c *cluster) describe() {
	c.Helper()
	pods, err := c.kube.CoreV1().Pods(namespace).List(context.Background(), meta.ListOptions{})
	if err != nil {
		c.Log(err)
		return
	}
	for _, p := range pods.Items {
		c.Logf("Pod %s on %s: %s, %+v", p.Name, p.Spec.NodeName, p.Status.Phase, p.Status.ContainerStatuses)
		log, err := c.kube.CoreV1().Pods(namespace).GetLogs(p.Name, &core.PodLogOptions{}).DoRaw(context.Background())
		c.Logf("%v\n%s", err, log)
	}
	events, err := c.kube.CoreV1().Events("").List(context.Background(), meta.ListOptions{})
	if err != nil {
		c.Log(err)
		return
	}
	for _, e := range events.Items {
		c.Logf("%s %s %s: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
	}
}

// exec executes a command in the container of a Pod.
func (c *cluster) exec(pod string, command ...string) (string, error) {
	c.Helper()
	req := c.kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("exec").
		VersionedParams(&core.PodExecOptions{Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	e, err := remotecommand.NewWebSocketExecutor(c.rest, http.MethodGet, req.URL().String())
	if err != nil {
		c.Fatal(err)
	}
	var out, errs bytes.Buffer
	if err := e.StreamWithContext(c.Context(), remotecommand.StreamOptions{Stdout: &out, Stderr: &errs}); err != nil {
		return out.String(), fmt.Errorf("%w: %s", err, &errs)
	}
	return out.String(), nil
}
