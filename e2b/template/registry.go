package template

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"

	"glasshouse/fault"
)

// A Registry contains a build's credentials for an image registry. They are kept in memory while
// the image is pulled, and never stored.
type Registry struct {
	Type           string `json:"type"` // registry, aws or gcp
	Username       string `json:"username"`
	Password       string `json:"password"`
	AccessKey      string `json:"awsAccessKeyId"`
	SecretKey      string `json:"awsSecretAccessKey"`
	Region         string `json:"awsRegion"`
	ServiceAccount string `json:"serviceAccountJson"`
}

// String returns a text without the credentials.
func (r Registry) String() string { return "credentials of the kind " + short(r.Type) }

// GoString returns a text without the credentials.
func (r Registry) GoString() string { return r.String() }

const maxCredential = 64 << 10

// awsRegion matches valid region names: the region becomes part of a host name.
var awsRegion = regexp.MustCompile(`^[a-z]{2}(-[a-z]+){1,3}-[0-9]{1,2}$`)

// check rejects malformed credentials. Its errors do not contain them.
func (r *Registry) check() error {
	if r == nil {
		return nil
	}
	for _, s := range []string{r.Username, r.Password, r.AccessKey, r.SecretKey, r.ServiceAccount} {
		if len(s) > maxCredential {
			return invalid("fromImageRegistry: a credential has more than %d bytes", maxCredential)
		}
	}
	switch r.Type {
	case "registry":
		if r.Username == "" || r.Password == "" || strings.Contains(r.Username, ":") {
			return invalid("fromImageRegistry: a registry needs a username, without a colon, and a password")
		}
	case "aws":
		if r.AccessKey == "" || r.SecretKey == "" || strings.ContainsAny(r.AccessKey, "/, \r\n") || !awsRegion.MatchString(r.Region) {
			return invalid("fromImageRegistry: aws needs awsAccessKeyId, awsSecretAccessKey and awsRegion")
		}
	case "gcp":
		var account struct {
			Email string `json:"client_email"`
			Key   string `json:"private_key"`
		}
		if json.Unmarshal([]byte(r.ServiceAccount), &account) != nil || account.Email == "" || account.Key == "" {
			return invalid("fromImageRegistry: serviceAccountJson is not the key of a service account")
		}
	default:
		return invalid("fromImageRegistry: the type %q is not one of registry, aws, gcp", short(r.Type))
	}
	return nil
}

// login returns the credentials for the registry; nil means those of the daemon's user.
func (r *Registry) login(ctx context.Context, transport http.RoundTripper) (authn.Authenticator, error) {
	if r == nil {
		return nil, nil
	}
	switch r.Type {
	case "aws":
		return r.ecr(ctx, transport)
	case "gcp":
		return &authn.Basic{Username: "_json_key", Password: r.ServiceAccount}, nil
	}
	return &authn.Basic{Username: r.Username, Password: r.Password}, nil
}

// ecrTime limits the request to Amazon.
const ecrTime = time.Minute

// ecr requests a username and a password for Amazon's registries, which are valid for some
// hours.
func (r *Registry) ecr(ctx context.Context, transport http.RoundTripper) (authn.Authenticator, error) {
	const what = "cannot get credentials for the Amazon registry"
	ctx, cancel := context.WithTimeout(ctx, ecrTime)
	defer cancel()
	host := "api.ecr." + r.Region + ".amazonaws.com"
	if strings.HasPrefix(r.Region, "cn-") {
		host += ".cn"
	}
	body := []byte("{}")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+host+"/", bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("create the request for ECR credentials: %w", err)
	}
	req.Header.Set("Content-Type", "application/x-amz-json-1.1")
	req.Header.Set("X-Amz-Target", "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken")
	signV4(req, body, r.AccessKey, r.SecretKey, r.Region, "ecr", time.Now())
	resp, err := transport.RoundTrip(req) // RoundTrip does not follow redirects
	if err != nil {
		return nil, fault.Newf(fault.Unavailable, "template.ecr", host, "%s: %v", what, err)
	}
	defer resp.Body.Close()
	var got struct {
		Type    string `json:"__type"`
		Message string `json:"message"`
		Data    []struct {
			Token string `json:"authorizationToken"`
		} `json:"authorizationData"`
	}
	err = json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&got)
	switch {
	case resp.StatusCode >= 500:
		return nil, fault.Newf(fault.Unavailable, "template.ecr", host, "%s: %s", what, resp.Status)
	case resp.StatusCode != http.StatusOK:
		return nil, fault.Newf(fault.Denied, "template.ecr", host, "%s: %s", what, short(cmp.Or(got.Message, got.Type, resp.Status)))
	case err != nil || len(got.Data) == 0:
		return nil, fault.Newf(fault.Unavailable, "template.ecr", host, "%s: malformed response", what)
	}
	text, err := base64.StdEncoding.DecodeString(got.Data[0].Token)
	name, password, ok := strings.Cut(string(text), ":")
	if err != nil || !ok {
		return nil, fault.Newf(fault.Unavailable, "template.ecr", host, "%s: malformed response", what)
	}
	return &authn.Basic{Username: name, Password: password}, nil
}

// signV4 signs a request without a query to an AWS service with Signature Version 4:
// https://docs.aws.amazon.com/IAM/latest/UserGuide/create-signed-request.html
func signV4(r *http.Request, body []byte, accessKey, secretKey, region, service string, now time.Time) {
	stamp := now.UTC().Format("20060102T150405Z")
	r.Header.Set("X-Amz-Date", stamp)
	var names, lines []string
	for _, name := range []string{"content-type", "host", "x-amz-date", "x-amz-target"} { // in alphabetical order
		value := r.Header.Get(name)
		if name == "host" {
			value = r.URL.Host
		}
		if value != "" {
			names, lines = append(names, name), append(lines, name+":"+strings.TrimSpace(value)+"\n")
		}
	}
	signed := strings.Join(names, ";")
	canonical := strings.Join([]string{r.Method, cmp.Or(r.URL.EscapedPath(), "/"), "", strings.Join(lines, ""), signed, digestOf(body)}, "\n")
	scope := strings.Join([]string{stamp[:8], region, service, "aws4_request"}, "/")
	key := []byte("AWS4" + secretKey)
	for _, part := range strings.Split(scope, "/") {
		key = macOf(key, part)
	}
	text := "AWS4-HMAC-SHA256\n" + stamp + "\n" + scope + "\n" + digestOf([]byte(canonical))
	r.Header.Set("Authorization", fmt.Sprintf("AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%x", accessKey, scope, signed, macOf(key, text)))
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func macOf(key []byte, text string) []byte {
	m := hmac.New(sha256.New, key)
	io.WriteString(m, text)
	return m.Sum(nil)
}
