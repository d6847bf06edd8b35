package secret

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"glasshouse/fault"
)

// VaultConfig says where a Vault server is and who we are there. One of TokenFile
// and RoleID is set.
type VaultConfig struct {
	Address   string // https://vault.example.com:8200
	Namespace string // of Vault Enterprise; "" is none
	CAFile    string // PEM; "" is the system's

	TokenFile    string // 0600
	RoleID       string // of AppRole
	SecretIDFile string // 0600
	AuthPath     string // where AppRole is mounted; default "approle"

	Timeout time.Duration // of one request; default 10 s
	Keep    time.Duration // how long a value is kept at most; default 30 s
}

// Vault provides values of HashiCorp Vault's key-value store, version 2:
// "vault:MOUNT/data/PATH#KEY", as its HTTP API names them.
//
// A value is kept in memory for a short time, so that many uses at once are one
// request; no longer than its lease, if it has one.
type Vault struct {
	cfg    VaultConfig
	client *http.Client

	mu sync.Mutex
	// +checklocks:mu
	token string
	// +checklocks:mu
	until time.Time // of token; zero is for good
	// +checklocks:mu
	kept   map[string]keptValue // by path with key
	logins sync.Mutex           // held while logging in
}

type keptValue struct {
	value Value
	until time.Time
}

// NewVault checks the configuration. It does not speak to the server.
func NewVault(cfg VaultConfig) (*Vault, error) {
	const op = "secret.NewVault"
	u, err := url.Parse(cfg.Address)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "":
		return nil, fault.Fieldf(op, "secrets.vault.address", "want https://HOST:PORT")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return nil, fault.Fieldf(op, "secrets.vault.address", "without TLS only a server on this host may be spoken to")
	case (cfg.TokenFile == "") == (cfg.RoleID == ""):
		return nil, fault.Fieldf(op, "secrets.vault", "name either token_file or role_id")
	case cfg.RoleID != "" && cfg.SecretIDFile == "":
		return nil, fault.Fieldf(op, "secrets.vault.secret_id_file", "an AppRole needs it")
	}
	cfg.Address = u.Scheme + "://" + u.Host
	if cfg.AuthPath == "" {
		cfg.AuthPath = "approle"
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	if cfg.Keep == 0 {
		cfg.Keep = 30 * time.Second
	}
	transport := &http.Transport{
		Proxy:           http.ProxyFromEnvironment,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
		IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: 4,
	}
	if cfg.CAFile != "" {
		pem, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read Vault's certificate authority: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fault.Fieldf(op, "secrets.vault.ca_file", "%s holds no certificate", cfg.CAFile)
		}
		transport.TLSClientConfig.RootCAs = pool
	}
	return &Vault{cfg: cfg, kept: map[string]keptValue{}, client: &http.Client{
		Transport: transport,
		// The token would go along to wherever it says.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

func loopback(host string) bool { return host == "127.0.0.1" || host == "::1" || host == "localhost" }

// Close forgets the token and all values.
func (v *Vault) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, kept := range v.kept {
		kept.value.Zero()
	}
	clear(v.kept)
	v.token = ""
	v.client.CloseIdleConnections()
	return nil
}

// Check implements Provider.
func (v *Vault) Check(reference string) error {
	_, _, err := splitVault(reference)
	return err
}

// splitVault returns the path and the key of "MOUNT/data/PATH#KEY".
func splitVault(reference string) (at, key string, err error) {
	at, key, ok := strings.Cut(reference, "#")
	if !ok || key == "" {
		return "", "", errors.New("want MOUNT/data/PATH#KEY: the key is missing")
	}
	parts := strings.Split(at, "/")
	if path.Clean(at) != at || strings.HasPrefix(at, "/") || strings.HasPrefix(at, "..") || len(parts) < 3 ||
		strings.ContainsAny(at, "?%\\\x00\r\n") || !slices.Contains(parts[1:len(parts)-1], "data") {
		return "", "", errors.New("want MOUNT/data/PATH#KEY, as Vault's HTTP API for key-value stores of version 2 has it")
	}
	return at, key, nil
}

// Fetch implements Provider.
func (v *Vault) Fetch(ctx context.Context, reference string) ([]byte, error) {
	at, key, err := splitVault(reference)
	if err != nil {
		return nil, fault.New(fault.Invalid, "secret.Vault", "", err)
	}
	if b := v.fromKept(reference); b != nil {
		return b, nil
	}
	answer, err := v.read(ctx, at)
	if err != nil {
		return nil, err
	}
	defer answer.zero()
	raw, ok := answer.Data.Data[key]
	if !ok {
		return nil, fault.Newf(fault.NotFound, "secret.Vault", at, "Vault has nothing under the key %.80q there", key)
	}
	b, err := plainValue(raw)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "secret.Vault", at, err)
	}
	v.keep(reference, b, time.Duration(answer.LeaseDuration)*time.Second)
	return b, nil
}

// plainValue is a JSON string's content, or any other value as it is written.
func plainValue(raw json.RawMessage) ([]byte, error) {
	if len(raw) == 0 || raw[0] != '"' {
		return bytes.Clone(raw), nil
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return nil, errors.New("what Vault has there is damaged")
	}
	return []byte(s), nil
}

func (v *Vault) fromKept(reference string) []byte {
	v.mu.Lock()
	defer v.mu.Unlock()
	kept, ok := v.kept[reference]
	if !ok {
		return nil
	}
	if time.Now().After(kept.until) {
		kept.value.Zero()
		delete(v.kept, reference)
		return nil
	}
	return bytes.Clone(kept.value.Bytes())
}

// maxKept bounds the values in memory: more are asked for each time.
const maxKept = 1024

func (v *Vault) keep(reference string, b []byte, lease time.Duration) {
	long := v.cfg.Keep
	if lease > 0 {
		long = min(long, lease)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	for ref, kept := range v.kept {
		if now.After(kept.until) || ref == reference {
			kept.value.Zero()
			delete(v.kept, ref)
		}
	}
	if len(v.kept) < maxKept {
		v.kept[reference] = keptValue{NewValue(reference, bytes.Clone(b)), now.Add(long)}
	}
}

// vaultAnswer is what Vault says to a read.
type vaultAnswer struct {
	LeaseDuration int64 `json:"lease_duration"`
	Data          struct {
		Data map[string]json.RawMessage `json:"data"`
	} `json:"data"`
	Auth *struct {
		ClientToken   string `json:"client_token"`
		LeaseDuration int64  `json:"lease_duration"`
	} `json:"auth"`
}

func (a *vaultAnswer) zero() {
	for _, raw := range a.Data.Data {
		clear(raw)
	}
}

// read reads at, with a new token if Vault does not take the one we have.
func (v *Vault) read(ctx context.Context, at string) (*vaultAnswer, error) {
	token, fresh, err := v.login(ctx, "")
	if err != nil {
		return nil, err
	}
	answer, err := v.call(ctx, http.MethodGet, at, token, nil)
	if !errors.Is(err, fault.Denied) || fresh {
		return answer, err
	}
	token, _, err = v.login(ctx, token)
	if err != nil {
		return nil, err
	}
	return v.call(ctx, http.MethodGet, at, token, nil)
}

// login returns a token, and whether it was just got: never the one that was
// refused.
func (v *Vault) login(ctx context.Context, refused string) (token string, fresh bool, err error) {
	v.logins.Lock()
	defer v.logins.Unlock()
	v.mu.Lock()
	token, until := v.token, v.until
	v.mu.Unlock()
	if token != "" && token != refused && (until.IsZero() || time.Now().Before(until)) {
		return token, false, nil
	}
	if v.cfg.TokenFile != "" {
		b, err := readPrivate(v.cfg.TokenFile, 4096)
		if err != nil {
			return "", false, fmt.Errorf("read Vault's token: %w", err)
		}
		token, until = strings.TrimSpace(string(b)), time.Time{}
		clear(b)
	} else if token, until, err = v.appRole(ctx); err != nil {
		return "", false, err
	}
	v.mu.Lock()
	v.token, v.until = token, until
	v.mu.Unlock()
	return token, true, nil
}

func (v *Vault) appRole(ctx context.Context) (token string, until time.Time, err error) {
	id, err := readPrivate(v.cfg.SecretIDFile, 4096)
	if err != nil {
		return "", until, fmt.Errorf("read Vault's secret id: %w", err)
	}
	body, err := json.Marshal(map[string]string{"role_id": v.cfg.RoleID, "secret_id": strings.TrimSpace(string(id))})
	clear(id)
	if err != nil {
		return "", until, err
	}
	defer clear(body)
	now := time.Now()
	answer, err := v.call(ctx, http.MethodPost, "auth/"+v.cfg.AuthPath+"/login", "", body)
	if err != nil {
		return "", until, fmt.Errorf("log in to Vault: %w", err)
	}
	if answer.Auth == nil || answer.Auth.ClientToken == "" {
		return "", until, fault.Newf(fault.Unavailable, "secret.Vault", "", "Vault's answer to the login has no token")
	}
	if lease := answer.Auth.LeaseDuration; lease > 0 { // some of it is left when it is last used
		until = now.Add(time.Duration(lease) * time.Second * 9 / 10)
	}
	return answer.Auth.ClientToken, until, nil
}

// maxAnswer bounds what is read of an answer.
const maxAnswer = 1 << 20

// call makes one request. Its errors say what Vault's status means and nothing of
// what it sent.
func (v *Vault) call(ctx context.Context, method, at, token string, body []byte) (*vaultAnswer, error) {
	const op = "secret.Vault"
	ctx, cancel := context.WithTimeout(ctx, v.cfg.Timeout)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, method, requestURL(v.cfg.Address, at), bytes.NewReader(body))
	if err != nil {
		return nil, fault.Newf(fault.Invalid, op, at, "no request can be made of it")
	}
	q.Header.Set("X-Vault-Request", "true")
	if token != "" {
		q.Header.Set("X-Vault-Token", token)
	}
	if v.cfg.Namespace != "" {
		q.Header.Set("X-Vault-Namespace", v.cfg.Namespace)
	}
	r, err := v.client.Do(q)
	if err != nil {
		return nil, unreachable(ctx, at, err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(io.LimitReader(r.Body, maxAnswer+1))
	defer clear(text)
	if err != nil {
		return nil, unreachable(ctx, at, err)
	}
	if r.StatusCode != http.StatusOK {
		return nil, refusedByVault(at, r.StatusCode)
	}
	var answer vaultAnswer
	if len(text) > maxAnswer || json.Unmarshal(text, &answer) != nil {
		answer.zero()
		return nil, fault.Newf(fault.Unavailable, op, at, "what answers there does not speak as Vault does")
	}
	return &answer, nil
}

func requestURL(address, at string) string {
	return address + (&url.URL{Path: "/v1/" + at}).EscapedPath()
}

// unreachable explains a request without an answer.
func unreachable(ctx context.Context, at string, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fault.Newf(fault.Timeout, "secret.Vault", at, "Vault did not answer in time")
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err // the rest is the request, which is ours to tell
	}
	return fault.Newf(fault.Unavailable, "secret.Vault", at, "Vault cannot be reached: %w", err)
}

// refusedByVault says what a status means, by Vault's documentation.
func refusedByVault(at string, status int) error {
	refuse := func(kind fault.Kind, remedy, why string) error {
		return &fault.Error{Op: "secret.Vault", On: at, Kind: kind, Err: fmt.Errorf("%s (status %d)", why, status), Remedy: remedy}
	}
	switch {
	case status == http.StatusForbidden:
		return refuse(fault.Denied, "give the token's policy the capability read on that path", "Vault does not let us read that")
	case status == http.StatusNotFound:
		return refuse(fault.NotFound, "", "Vault has nothing there, or it was deleted")
	case status == http.StatusBadRequest:
		return refuse(fault.Denied, "look at the path, the role and its secret id", "Vault does not take the request")
	case status == http.StatusServiceUnavailable:
		return refuse(fault.Unavailable, "unseal it", "Vault is sealed, or being maintained")
	case status == http.StatusTooManyRequests:
		return refuse(fault.Exhausted, "", "Vault has been asked too often")
	case status == http.StatusPreconditionFailed || status == 472 || status == 473:
		return refuse(fault.Unavailable, "", "that Vault server is a standby, or behind")
	case status >= 300 && status < 400:
		return refuse(fault.Unavailable, "name the active server's address", "Vault sends us to another server, where our token does not go")
	}
	return refuse(fault.Unavailable, "", "Vault cannot answer")
}
