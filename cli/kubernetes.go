package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"glasshouse/fault"
)

// serviceAccount is where Kubernetes mounts the credentials of a Pod.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// A cluster is the API of the Kubernetes cluster in which this process runs.
type cluster struct {
	url, namespace, token string
	client                *http.Client
}

// ownCluster returns the cluster whose credentials are mounted in a directory.
func ownCluster(getenv func(string) string, dir string) (*cluster, error) {
	host, port := getenv("KUBERNETES_SERVICE_HOST"), getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, fault.Cannot("cli.ownCluster", "this process does not run in a Pod of Kubernetes",
			"write the keys to a directory with --keys, and create a Secret of its files with kubectl create secret generic")
	}
	files := map[string]string{"token": "", "namespace": "", "ca.crt": ""}
	for name := range files {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("read the credentials of the Pod: %w", err)
		}
		files[name] = strings.TrimSpace(string(data))
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(files["ca.crt"])) {
		return nil, fault.Newf(fault.Invalid, "cli.ownCluster", dir, "ca.crt has no certificate")
	}
	return &cluster{
		url: "https://" + net.JoinHostPort(host, port), namespace: files["namespace"], token: files["token"],
		client: &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}},
	}, nil
}

// createSecret creates a Secret with files. It reports whether there was none of that name.
func (k *cluster) createSecret(ctx context.Context, name string, files map[string][]byte) (created bool, err error) {
	body, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": files,
		"metadata": map[string]any{"name": name, "labels": map[string]string{"app.kubernetes.io/part-of": "glasshouse"}},
	})
	if err != nil {
		return false, fmt.Errorf("encode the Secret: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, k.url+"/api/v1/namespaces/"+k.namespace+"/secrets", bytes.NewReader(body))
	if err != nil {
		return false, fmt.Errorf("request the Secret: %w", err)
	}
	r.Header.Set("Authorization", "Bearer "+k.token)
	r.Header.Set("Content-Type", "application/json")
	response, err := k.client.Do(r)
	if err != nil {
		return false, fault.New(fault.Unavailable, "cli.createSecret", name, err)
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusCreated:
		return true, nil
	case http.StatusConflict:
		return false, nil
	}
	var status struct{ Message string }
	if err := json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(&status); err != nil || status.Message == "" {
		status.Message = response.Status
	}
	kind := fault.Unavailable
	if response.StatusCode == http.StatusForbidden || response.StatusCode == http.StatusUnauthorized {
		kind = fault.Denied
	}
	return false, &fault.Error{Op: "cli.createSecret", Kind: kind, On: name, Err: errors.New("Kubernetes: " + status.Message),
		Remedy: "the service account must be allowed to create Secrets in namespace " + k.namespace}
}
