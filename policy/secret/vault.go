package secret

import (
	"bytes"
	"cmp"
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

// VaultConfig is the address of a Vault server and the identity to log in with. Exactly one of
// TokenFile and RoleID must be set.
type VaultConfig struct {
	Address   string // https://vault.example.com:8200
	Namespace string // Vault Enterprise namespace; "": none
	CAFile    string // PEM; "": system roots

	TokenFile    string // 0600
	RoleID       string // AppRole role id
	SecretIDFile string // 0600
	AuthPath     string // mount path of AppRole; default "approle"

	Timeout  time.Duration // per request; default 10 s
	CacheTTL time.Duration // maximum time in the cache; default 30 s
}

// Vault is a Provider for the key-value store (version 2) of HashiCorp Vault. A reference is
// "vault:MOUNT/data/PATH#KEY", with the path of the HTTP API.
//
// Values are cached in memory for a short time, at most for their lease, so that concurrent
// uses need one request.
type Vault struct {
	cfg    VaultConfig
	client *http.Client

	mu sync.Mutex
	// +checklocks:mu
	token string
	// +checklocks:mu
	until time.Time // expiry of token; zero: never
	// +checklocks:mu
	cache   map[string]cachedValue // by reference
	loginMu sync.Mutex             // serializes logins
}

type cachedValue struct {
	value Value
	until time.Time
}

// NewVault validates the configuration. It does not contact the server.
func NewVault(cfg VaultConfig) (*Vault, error) {
	const op = "secret.NewVault"
	u, err := url.Parse(cfg.Address)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "":
		return nil, fault.Fieldf(op, "secrets.vault.address", "want https://HOST:PORT")
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return nil, fault.Fieldf(op, "secrets.vault.address", "plain HTTP is only allowed to a loopback address")
	case (cfg.TokenFile == "") == (cfg.RoleID == ""):
		return nil, fault.Fieldf(op, "secrets.vault", "want exactly one of token_file and role_id")
	case cfg.RoleID != "" && cfg.SecretIDFile == "":
		return nil, fault.Fieldf(op, "secrets.vault.secret_id_file", "required with role_id")
	}
	cfg.Address = u.Scheme + "://" + u.Host
	if cfg.AuthPath == "" {
		cfg.AuthPath = "approle"
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	if cfg.CacheTTL == 0 {
		cfg.CacheTTL = 30 * time.Second
	}
	transport := &http.Transport{
		Proxy:           http.ProxyFromEnvironment,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
		IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: 4,
	}
	if cfg.CAFile != "" {
		pem, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read the CA file of Vault: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fault.Fieldf(op, "secrets.vault.ca_file", "%s contains no certificate", cfg.CAFile)
		}
		transport.TLSClientConfig.RootCAs = pool
	}
	return &Vault{cfg: cfg, cache: map[string]cachedValue{}, client: &http.Client{
		Transport: transport,
		// A redirect would send the token to another server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

func isLoopback(host string) bool { return host == "127.0.0.1" || host == "::1" || host == "localhost" }

// Close zeroes the cached values and drops the token.
func (v *Vault) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, kept := range v.cache {
		kept.value.Zero()
	}
	clear(v.cache)
	v.token = ""
	v.client.CloseIdleConnections()
	return nil
}

// Check implements Provider.
func (v *Vault) Check(reference string) error {
	_, _, err := splitVault(reference)
	return err
}

// splitVault splits "MOUNT/data/PATH#KEY" into path and key.
func splitVault(reference string) (apiPath, key string, err error) {
	apiPath, key, ok := strings.Cut(reference, "#")
	if !ok || key == "" {
		return "", "", errors.New("want MOUNT/data/PATH#KEY: the key is missing")
	}
	parts := strings.Split(apiPath, "/")
	if path.Clean(apiPath) != apiPath || strings.HasPrefix(apiPath, "/") || strings.HasPrefix(apiPath, "..") || len(parts) < 3 ||
		strings.ContainsAny(apiPath, "?%\\\x00\r\n") || !slices.Contains(parts[1:len(parts)-1], "data") {
		return "", "", errors.New("want MOUNT/data/PATH#KEY, the path of Vault's HTTP API for key-value stores of version 2")
	}
	return apiPath, key, nil
}

// Fetch implements Provider.
func (v *Vault) Fetch(ctx context.Context, reference string) ([]byte, error) {
	apiPath, key, err := splitVault(reference)
	if err != nil {
		return nil, fault.New(fault.Invalid, "secret.Vault.Fetch", "", err)
	}
	if b := v.fromCache(reference); b != nil {
		return b, nil
	}
	answer, err := v.read(ctx, apiPath)
	if err != nil {
		return nil, err
	}
	defer answer.zero()
	raw, ok := answer.Data.Data[key]
	if !ok {
		return nil, fault.Newf(fault.NotFound, "secret.Vault.Fetch", apiPath, "Vault has no key %.80q at this path", key)
	}
	b, err := plainValue(raw)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "secret.Vault.Fetch", apiPath, err)
	}
	v.addToCache(reference, b, time.Duration(answer.LeaseDuration)*time.Second)
	return b, nil
}

// plainValue returns the content of a JSON string, or the JSON text of any other value.
func plainValue(raw json.RawMessage) ([]byte, error) {
	if len(raw) == 0 || raw[0] != '"' {
		return bytes.Clone(raw), nil
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return nil, errors.New("Vault returned an invalid JSON string")
	}
	return []byte(s), nil
}

func (v *Vault) fromCache(reference string) []byte {
	v.mu.Lock()
	defer v.mu.Unlock()
	kept, ok := v.cache[reference]
	if !ok {
		return nil
	}
	if time.Now().After(kept.until) {
		kept.value.Zero()
		delete(v.cache, reference)
		return nil
	}
	return bytes.Clone(kept.value.Bytes())
}

// maxCached is the maximum number of cached values. Others are fetched at each use.
const maxCached = 1024

func (v *Vault) addToCache(reference string, b []byte, lease time.Duration) {
	ttl := v.cfg.CacheTTL
	if lease > 0 {
		ttl = min(ttl, lease)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	for ref, kept := range v.cache {
		if now.After(kept.until) || ref == reference {
			kept.value.Zero()
			delete(v.cache, ref)
		}
	}
	if len(v.cache) < maxCached {
		v.cache[reference] = cachedValue{NewValue(reference, bytes.Clone(b)), now.Add(ttl)}
	}
}

// vaultResponse is a response to a read or a login.
type vaultResponse struct {
	LeaseDuration int64 `json:"lease_duration"`
	Data          struct {
		Data map[string]json.RawMessage `json:"data"`
	} `json:"data"`
	Auth *struct {
		ClientToken   string `json:"client_token"`
		LeaseDuration int64  `json:"lease_duration"`
	} `json:"auth"`
}

func (a *vaultResponse) zero() {
	for _, raw := range a.Data.Data {
		clear(raw)
	}
}

// read reads a path. If Vault rejects the current token, it logs in once more.
func (v *Vault) read(ctx context.Context, apiPath string) (*vaultResponse, error) {
	token, fresh, err := v.login(ctx, "")
	if err != nil {
		return nil, err
	}
	answer, err := v.call(ctx, http.MethodGet, apiPath, token, nil)
	if !errors.Is(err, fault.Denied) || fresh {
		return answer, err
	}
	token, _, err = v.login(ctx, token)
	if err != nil {
		return nil, err
	}
	return v.call(ctx, http.MethodGet, apiPath, token, nil)
}

// login returns a token other than the rejected one. fresh reports that it is new.
func (v *Vault) login(ctx context.Context, refused string) (token string, fresh bool, err error) {
	v.loginMu.Lock()
	defer v.loginMu.Unlock()
	v.mu.Lock()
	token, until := v.token, v.until
	v.mu.Unlock()
	if token != "" && token != refused && (until.IsZero() || time.Now().Before(until)) {
		return token, false, nil
	}
	if v.cfg.TokenFile != "" {
		b, err := readPrivate(v.cfg.TokenFile, 4096)
		if err != nil {
			return "", false, fmt.Errorf("read the Vault token: %w", err)
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
		return "", until, fmt.Errorf("read the Vault secret id: %w", err)
	}
	body, err := json.Marshal(map[string]string{"role_id": v.cfg.RoleID, "secret_id": strings.TrimSpace(string(id))})
	clear(id)
	if err != nil {
		return "", until, fmt.Errorf("encode the login request: %w", err)
	}
	defer clear(body)
	now := time.Now()
	answer, err := v.call(ctx, http.MethodPost, "auth/"+v.cfg.AuthPath+"/login", "", body)
	if err != nil {
		return "", until, fmt.Errorf("log in to Vault: %w", err)
	}
	if answer.Auth == nil || answer.Auth.ClientToken == "" {
		return "", until, fault.Newf(fault.Unavailable, "secret.Vault.Fetch", "", "the login response has no token")
	}
	if lease := answer.Auth.LeaseDuration; lease > 0 { // margin for the time of a request
		until = now.Add(time.Duration(lease) * time.Second * 9 / 10)
	}
	return answer.Auth.ClientToken, until, nil
}

// maxResponse is the maximum size of a response in bytes.
const maxResponse = 1 << 20

// call makes one request. Its errors describe the status code and never contain the response
// body.
func (v *Vault) call(ctx context.Context, method, apiPath, token string, body []byte) (*vaultResponse, error) {
	const op = "secret.Vault.Fetch"
	ctx, cancel := context.WithTimeout(ctx, v.cfg.Timeout)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, method, requestURL(v.cfg.Address, apiPath), bytes.NewReader(body))
	if err != nil {
		return nil, fault.Newf(fault.Invalid, op, apiPath, "invalid path")
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
		return nil, transportError(ctx, apiPath, err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(io.LimitReader(r.Body, maxResponse+1))
	defer clear(text)
	// A canceled request closes the connection. A server that sees this may end its response
	// before the client stops to read.
	err = cmp.Or(err, ctx.Err())
	if err != nil {
		return nil, transportError(ctx, apiPath, err)
	}
	if r.StatusCode != http.StatusOK {
		return nil, statusError(apiPath, r.StatusCode)
	}
	var answer vaultResponse
	if len(text) > maxResponse || json.Unmarshal(text, &answer) != nil {
		answer.zero()
		return nil, fault.Newf(fault.Unavailable, op, apiPath, "the response is not valid for the Vault API")
	}
	return &answer, nil
}

func requestURL(address, apiPath string) string {
	return address + (&url.URL{Path: "/v1/" + apiPath}).EscapedPath()
}

// transportError describes a request without a response.
func transportError(ctx context.Context, apiPath string, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fault.Newf(fault.Timeout, "secret.Vault.Fetch", apiPath, "the request to Vault timed out")
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err // drop the URL: On has the path
	}
	return fault.Newf(fault.Unavailable, "secret.Vault.Fetch", apiPath, "Vault cannot be reached: %w", err)
}

// statusError describes a status code of Vault
// (https://developer.hashicorp.com/vault/api-docs#http-status-codes and sys/health for 472,
// 473).
func statusError(apiPath string, status int) error {
	refuse := func(kind fault.Kind, remedy, why string) error {
		return &fault.Error{Op: "secret.Vault.Fetch", On: apiPath, Kind: kind, Err: fmt.Errorf("%s (status %d)", why, status), Remedy: remedy}
	}
	switch {
	case status == http.StatusForbidden:
		return refuse(fault.Denied, "grant the token's policy the capability read on the path", "permission denied")
	case status == http.StatusNotFound:
		return refuse(fault.NotFound, "", "the path does not exist, or its version was deleted")
	case status == http.StatusBadRequest:
		return refuse(fault.Denied, "check the path, the role id and the secret id", "Vault rejected the request")
	case status == http.StatusServiceUnavailable:
		return refuse(fault.Unavailable, "unseal Vault", "Vault is sealed or in maintenance")
	case status == http.StatusTooManyRequests:
		return refuse(fault.Exhausted, "", "the rate limit of Vault is exceeded")
	case status == http.StatusPreconditionFailed || status == 472 || status == 473:
		return refuse(fault.Unavailable, "", "the Vault server is a standby or not up to date")
	case status >= 300 && status < 400:
		return refuse(fault.Unavailable, "configure the address of the active server", "Vault redirected to another server, and redirects are not followed")
	}
	return refuse(fault.Unavailable, "", "Vault failed to answer the request")
}
