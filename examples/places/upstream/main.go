// Upstream is a minimal places API for the example: a TLS server that returns a few places and
// rejects requests without the key.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"log"
	"math"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

func main() {
	log.SetFlags(0)
	listen := flag.String("listen", ":443", "where to listen")
	hosts := flag.String("hosts", "places.googleapis.com,maps.googleapis.com", "the names to answer by")
	caFile := flag.String("ca", "ca.pem", "where to write the certificate of the authority, once it listens")
	keyFile := flag.String("key", "", "the file with the key that callers must have")
	flag.Parse()
	if err := serve(*listen, strings.Split(*hosts, ","), *caFile, *keyFile); err != nil {
		log.Fatalf("upstream: %v", err)
	}
}

func serve(listen string, hosts []string, caFile, keyFile string) error {
	key, err := os.ReadFile(keyFile)
	if err != nil {
		return err
	}
	cert, authority, err := certify(hosts)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	if err := os.WriteFile(caFile, authority, 0o644); err != nil {
		return err
	}
	s := &http.Server{
		Handler: routes(strings.TrimSpace(string(key))), ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
	}
	return s.ServeTLS(l, "", "")
}

func routes(key string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/places:searchText", search)
	mux.HandleFunc("GET /v1/echo", echo)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given := r.Header.Get("X-Goog-Api-Key")
		known := subtle.ConstantTimeCompare([]byte(given), []byte(key)) == 1
		log.Printf("%s https://%s%s with a key that is %s", r.Method, r.Host, r.URL.Path, map[bool]string{true: "good", false: "not"}[known])
		if !known {
			answer(w, http.StatusForbidden, map[string]any{"error": map[string]any{"code": 403, "status": "PERMISSION_DENIED", "message": "the key is missing or wrong"}})
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// A place is a place in the API's responses.
type place struct {
	ID          string `json:"id"`
	DisplayName struct {
		Text string `json:"text"`
	} `json:"displayName"`
	Address string   `json:"formattedAddress"`
	Rating  float64  `json:"rating"`
	Types   []string `json:"types"`
	Hours   struct {
		Open bool `json:"openNow"`
	} `json:"currentOpeningHours"`
	lat, lng float64
}

func known() []place {
	var all []place
	add := func(id, name, address, kind string, rating float64, open bool, lat, lng float64) {
		p := place{ID: id, Address: address, Rating: rating, Types: []string{kind}, lat: lat, lng: lng}
		p.DisplayName.Text, p.Hours.Open = name, open
		all = append(all, p)
	}
	add("p1", "The Glass Cup", "1 Greek Street, London", "coffee_shop", 4.7, true, 51.5146, -0.1310)
	add("p2", "Causal Coffee", "12 Berwick Street, London", "coffee_shop", 4.4, false, 51.5139, -0.1348)
	add("p3", "Greenhouse Tea and Coffee", "8 Dean Street, London", "cafe", 4.1, true, 51.5152, -0.1328)
	add("p4", "Stone's Throw Bakery", "20 Old Compton Street, London", "bakery", 4.9, true, 51.5130, -0.1307)
	add("p5", "Café de la Serre, coffee", "3 Rue de Sévigné, Paris", "cafe", 4.5, true, 48.8556, 2.3622)
	return all
}

func search(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Query   string  `json:"textQuery"`
		OpenNow bool    `json:"openNow"`
		Rating  float64 `json:"minRating"`
		Bias    struct {
			Circle struct {
				Center struct{ Latitude, Longitude float64 } `json:"center"`
				Radius float64                               `json:"radius"`
			} `json:"circle"`
		} `json:"locationBias"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&asked); err != nil {
		answer(w, http.StatusBadRequest, map[string]any{"error": map[string]any{"code": 400, "message": err.Error()}})
		return
	}
	around := asked.Bias.Circle
	found := []place{}
	for _, p := range known() {
		if p.is(asked.Query) && (p.Hours.Open || !asked.OpenNow) && p.Rating >= asked.Rating &&
			metres(p.lat, p.lng, around.Center.Latitude, around.Center.Longitude) <= around.Radius {
			found = append(found, p)
		}
	}
	answer(w, http.StatusOK, map[string]any{"places": found})
}

// is reports whether all words of a query are among those of a place.
func (p place) is(query string) bool {
	words := strings.ToLower(p.DisplayName.Text + " " + strings.ReplaceAll(strings.Join(p.Types, " "), "_", " "))
	for word := range strings.FieldsSeq(strings.ToLower(query)) {
		if !strings.Contains(words, word) {
			return false
		}
	}
	return true
}

// metres returns the approximate distance of two points that are close to each other.
func metres(lat, lng, lat2, lng2 float64) float64 {
	const degree = 111_320
	return math.Hypot((lat-lat2)*degree, (lng-lng2)*degree*math.Cos(lat*math.Pi/180))
}

// echo returns the request of the caller, including the key, as careless servers do.
func echo(w http.ResponseWriter, r *http.Request) {
	answer(w, http.StatusOK, map[string]any{"headers": r.Header})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		log.Printf("answer: %v", err)
	}
}

// certify makes an authority and a certificate of it, for a day.
func certify(hosts []string) (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	from, until := time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of the example"}, NotBefore: from, NotAfter: until,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: hosts[0]}, NotBefore: from, NotAfter: until,
		DNSNames: hosts, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	root, err := x509.CreateCertificate(rand.Reader, authority, authority, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("make the authority: %w", err)
	}
	leaf, err := x509.CreateCertificate(rand.Reader, server, authority, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("make the certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{leaf}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root}), nil
}
