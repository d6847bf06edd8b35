package template

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"

	"glasshouse/fault"
)

func TestRegistryCredentials(t *testing.T) {
	account := `{"type": "service_account", "client_email": "a@b", "private_key": "k"}`
	quoted, _ := json.Marshal(account)
	for body, well := range map[string]bool{
		`null`: true,
		`{"type": "registry", "username": "u", "password": "secret"}`:                                                    true,
		`{"type": "registry", "username": "u"}`:                                                                          false,
		`{"type": "registry", "username": "u:v", "password": "secret"}`:                                                  false,
		`{"type": "registry", "username": "u", "password": "` + strings.Repeat("secret", maxCredential) + `"}`:           false,
		`{"type": "aws", "awsAccessKeyId": "A", "awsSecretAccessKey": "secret", "awsRegion": "eu-west-1"}`:               true,
		`{"type": "aws", "awsAccessKeyId": "A", "awsSecretAccessKey": "secret", "awsRegion": "us-gov-east-1"}`:           true,
		`{"type": "aws", "awsAccessKeyId": "A", "awsSecretAccessKey": "secret", "awsRegion": "eu-west-1.example.com/?"}`: false,
		`{"type": "aws", "awsAccessKeyId": "A", "awsSecretAccessKey": "secret", "awsRegion": "x@127.0.0.1:80/"}`:         false,
		`{"type": "aws", "awsAccessKeyId": "A, Signature=", "awsSecretAccessKey": "secret", "awsRegion": "eu-west-1"}`:   false,
		`{"type": "aws", "awsAccessKeyId": "A", "awsRegion": "eu-west-1"}`:                                               false,
		`{"type": "gcp", "serviceAccountJson": ` + string(quoted) + `}`:                                                  true,
		`{"type": "gcp", "serviceAccountJson": "{\"secret\": 1}"}`:                                                       false,
		`{"type": "gcp", "serviceAccountJson": "secret"}`:                                                                false,
		`{"type": "azure", "password": "secret"}`:                                                                        false,
		`{"username": "u", "password": "secret"}`:                                                                        false,
	} {
		var p Plan
		if err := json.Unmarshal([]byte(`{"fromImage": "a", "fromImageRegistry": `+body+`}`), &p); err != nil {
			t.Fatal(body, err)
		}
		err := p.check()
		if well && err != nil || !well && fault.KindOf(err) != fault.Invalid {
			t.Errorf("%.200s: %v", body, err)
		}
		if said := fmt.Sprintf("%v %+v %#v %s", err, p, p.Registry, p.Registry); strings.Contains(said, "secret") {
			t.Errorf("the credentials are printed: %.300s", said)
		}
	}
}

// The first case is from the AWS Signature Version 4 test suite.
func TestSignV4(t *testing.T) {
	at := time.Date(2015, 8, 30, 12, 36, 0, 0, time.UTC)
	const key, secret = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
	for method, want := range map[string]string{
		"GET":  "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
		"POST": "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
	} {
		r, err := http.NewRequestWithContext(t.Context(), method, "https://example.amazonaws.com/", nil)
		if err != nil {
			t.Fatal(err)
		}
		signV4(r, nil, key, secret, "us-east-1", "service", at)
		if got := r.Header.Get("Authorization"); got != "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, SignedHeaders=host;x-amz-date, Signature="+want {
			t.Errorf("%s: %s", method, got)
		}
	}
}

type answering func(*http.Request) (*http.Response, error)

func (f answering) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestECRLogin(t *testing.T) {
	reg := &Registry{Type: "aws", AccessKey: "AKID", SecretKey: "very secret", Region: "eu-central-1"}
	token := func(s string) string {
		return fmt.Sprintf(`{"authorizationData": [{"authorizationToken": %q}]}`, base64.StdEncoding.EncodeToString([]byte(s)))
	}
	for _, try := range []struct {
		status int
		body   string
		err    error
		want   fault.Kind
	}{
		{200, token("AWS:a:pass"), nil, ""},
		{200, token("nothing"), nil, fault.Unavailable},
		{200, `{"authorizationData": []}`, nil, fault.Unavailable},
		{200, `<html>`, nil, fault.Unavailable},
		{302, ``, nil, fault.Denied},
		{400, `{"__type": "UnrecognizedClientException", "message": "The security token included in the request is invalid."}`, nil, fault.Denied},
		{503, `busy`, nil, fault.Unavailable},
		{0, ``, errors.New("no route to host"), fault.Unavailable},
	} {
		login, err := reg.login(t.Context(), answering(func(r *http.Request) (*http.Response, error) {
			body, _ := io.ReadAll(r.Body)
			if r.URL.String() != "https://api.ecr.eu-central-1.amazonaws.com/" || r.Method != "POST" || string(body) != "{}" || r.Header.Get("X-Amz-Target") != "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken" {
				t.Errorf("%s %s %s %v", r.Method, r.URL, body, r.Header)
			}
			if a := r.Header.Get("Authorization"); !strings.Contains(a, "Credential=AKID/") || !strings.Contains(a, "/eu-central-1/ecr/aws4_request, SignedHeaders=content-type;host;x-amz-date;x-amz-target, ") {
				t.Error(a)
			}
			if try.err != nil {
				return nil, try.err
			}
			return &http.Response{StatusCode: try.status, Status: fmt.Sprint(try.status), Body: io.NopCloser(bytes.NewBufferString(try.body)), Header: http.Header{}}, nil
		}))
		if fault.KindOf(err) != try.want || (err == nil) != (try.want == "") {
			t.Errorf("%d %s: %v, want %s", try.status, try.body, err, try.want)
		}
		if err != nil {
			if strings.Contains(err.Error(), reg.SecretKey) {
				t.Error(err)
			}
			continue
		}
		got, err := authn.Authorization(t.Context(), login)
		if err != nil || got.Username != "AWS" || got.Password != "a:pass" {
			t.Errorf("%+v, %v", got, err)
		}
	}
}
