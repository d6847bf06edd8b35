package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// maxBody is the default limit of Firecracker for a request.
const maxBody = 51200

// states of a machine, as GET / names them.
const (
	notStarted = "Not started"
	running    = "Running"
	paused     = "Paused"
)

var (
	errAfterStart  = errors.New("The requested operation is not supported after starting the microVM.")
	errBeforeStart = errors.New("The requested operation is not supported before starting the microVM.")
	errConfigured  = errors.New("Loading a microVM snapshot not allowed after configuring boot-specific resources.")
)

// A config is what the calls before the start have configured. It is part of a snapshot.
type config struct {
	Machine *machineConfig
	Boot    *bootSource
	Drives  []drive
	Net     *networkInterface
	Vsock   *vsockDevice
}

type machineConfig struct {
	VCPUs      int    `json:"vcpu_count" required:"true"`
	MemMiB     int64  `json:"mem_size_mib" required:"true"`
	SMT        bool   `json:"smt"`
	TrackDirty bool   `json:"track_dirty_pages"`
	Template   string `json:"cpu_template"`
	HugePages  string `json:"huge_pages"`
}

type bootSource struct {
	Kernel string `json:"kernel_image_path" required:"true"`
	Initrd string `json:"initrd_path"`
	Args   string `json:"boot_args"`
}

type drive struct {
	ID       string `json:"drive_id" required:"true"`
	Path     string `json:"path_on_host"`
	Root     bool   `json:"is_root_device" required:"true"`
	ReadOnly bool   `json:"is_read_only"`
	PartUUID string `json:"partuuid"`
	Cache    string `json:"cache_type"`
	Engine   string `json:"io_engine"`
}

type networkInterface struct {
	ID   string `json:"iface_id" required:"true"`
	MAC  string `json:"guest_mac"`
	Host string `json:"host_dev_name" required:"true"`
}

type vsockDevice struct {
	CID  int64  `json:"guest_cid" required:"true"`
	Path string `json:"uds_path" required:"true"`
	ID   string `json:"vsock_id"`
}

type action struct {
	Type string `json:"action_type" required:"true"`
}

type vmState struct {
	State string `json:"state" required:"true"`
}

type snapshotCreate struct {
	Type   string `json:"snapshot_type"`
	Path   string `json:"snapshot_path" required:"true"`
	Memory string `json:"mem_file_path" required:"true"`
}

type snapshotLoad struct {
	Path    string `json:"snapshot_path" required:"true"`
	Backend struct {
		Type string `json:"backend_type" required:"true"`
		Path string `json:"backend_path" required:"true"`
	} `json:"mem_backend" required:"true"`
	Diff     bool `json:"enable_diff_snapshots"`
	Track    bool `json:"track_dirty_pages"`
	Resume   bool `json:"resume_vm"`
	Networks []struct {
		ID   string `json:"iface_id" required:"true"`
		Host string `json:"host_dev_name" required:"true"`
	} `json:"network_overrides"`
}

// An api serves the API. Calls are executed one after the other.
type api struct {
	mu sync.Mutex
	m  *machine // +checklocks:mu
}

func newAPI(m *machine) http.Handler {
	a := &api{m: m}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", a.get(func() any {
		return map[string]string{"id": m.id, "state": m.state, "vmm_version": release, "app_name": "Firecracker"}
	}))
	mux.HandleFunc("GET /version", a.get(func() any { return map[string]string{"firecracker_version": release} }))
	mux.HandleFunc("PUT /machine-config", handle(a, before, m.configure))
	mux.HandleFunc("PUT /boot-source", handle(a, before, m.setBoot))
	mux.HandleFunc("PUT /drives/{id}", handle(a, before, m.addDrive))
	mux.HandleFunc("PUT /network-interfaces/{id}", handle(a, before, m.addNetwork))
	mux.HandleFunc("PUT /vsock", handle(a, before, m.setVsock))
	mux.HandleFunc("PUT /actions", handle(a, before, m.act))
	mux.HandleFunc("PUT /snapshot/load", handle(a, before, m.load))
	mux.HandleFunc("PUT /snapshot/create", handle(a, after, m.create))
	mux.HandleFunc("PATCH /vm", handle(a, after, m.setState))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, fmt.Errorf("Invalid request method and/or path: %s %s.", r.Method, r.URL.Path))
	})
	return mux
}

func (a *api) get(f func() any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if r.ContentLength != 0 {
			refuse(w, errors.New("GET request cannot have a body."))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(f())
	}
}

func refuse(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusBadRequest)
	json.NewEncoder(w).Encode(map[string]string{"fault_message": err.Error()})
}

// A phase is the time before or after the start of the machine, in which a call is allowed.
type phase int

const (
	before phase = iota
	after
)

// handle decodes a request strictly and executes it.
func handle[T any](a *api, when phase, do func(id string, in T) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
		var in T
		switch {
		case err != nil:
		case len(body) > maxBody:
			err = fmt.Errorf("Request payload with size %d is larger than the limit of %d allowed by server.", len(body), maxBody)
		default:
			err = decode(body, &in)
		}
		switch {
		case err != nil:
		case when == before && a.m.state != notStarted:
			err = errAfterStart
		case when == after && a.m.state == notStarted:
			err = errBeforeStart
		default:
			err = do(r.PathValue("id"), in)
		}
		if err != nil {
			refuse(w, err)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

// decode decodes an object that must have the required fields, and no unknown ones.
func decode(body []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("An error occurred when deserializing the json body of a request: %w.", err)
	}
	return checkRequired(body, into)
}

// oneOf returns an error if a value is not empty and not one of those allowed.
func oneOf(field, value string, allowed ...string) error {
	if value != "" && !slices.Contains(allowed, value) {
		return fmt.Errorf("An error occurred when deserializing the json body of a request: unknown variant `%s`, expected one of `%s` (%s).", value, strings.Join(allowed, "`, `"), field)
	}
	return nil
}
