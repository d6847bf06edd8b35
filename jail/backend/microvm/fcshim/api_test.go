package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestStrictness checks that the double refuses what Firecracker refuses, before and after the calls that
// configure a machine.
func TestStrictness(t *testing.T) {
	dir := t.TempDir()
	disk, kernel, shared := filepath.Join(dir, "disk"), filepath.Join(dir, "kernel"), filepath.Join(dir, "v.sock")
	for _, name := range []string{disk, kernel} {
		if err := os.WriteFile(name, []byte("no kernel"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	boot := fmt.Sprintf(`{"kernel_image_path": %q, "boot_args": "quiet"}`, kernel)
	drive := fmt.Sprintf(`{"drive_id": "d", "path_on_host": %q, "is_root_device": false, "is_read_only": true, "cache_type": "Unsafe"}`, disk)
	const ok, bad = http.StatusNoContent, http.StatusBadRequest
	api := newAPI(newMachine("x"))
	for _, c := range []struct {
		call, body string
		status     int
		want       string
	}{
		{"GET /", "", 200, `"state":"Not started"`},
		{"GET /version", "", 200, `"firecracker_version":"` + release + `"`},
		{"GET /version", "null", bad, "cannot have a body"},
		{"GET /nothing", "", bad, "Invalid request method and/or path"},
		{"POST /machine-config", "{}", bad, "Invalid request method and/or path"},
		{"PUT /machine-config", "", bad, "deserializing"},
		{"PUT /machine-config", `{"vcpu_count": 1}`, bad, "missing field `mem_size_mib`"},
		{"PUT /machine-config", `{"vcpu_count": 1, "mem_size_mib": "128"}`, bad, "deserializing"},
		{"PUT /machine-config", `{"vcpu_count": 0, "mem_size_mib": 128}`, bad, "vCPU number is invalid"},
		{"PUT /machine-config", `{"vcpu_count": 1, "mem_size_mib": 128, "memory": 1}`, bad, "unknown field"},
		{"PUT /machine-config", `{"vcpu_count": 1, "mem_size_mib": 128, "cpu_template": "T9"}`, bad, "unknown variant"},
		{"PUT /machine-config", `{"vcpu_count": 1, "mem_size_mib": 128, "smt": null}`, bad, "invalid type: null"},
		{"PUT /machine-config", `{"vcpu_count": 1, "mem_size_mib": 128` + strings.Repeat(" ", maxBody) + "}", bad, "larger than the limit"},
		{"PUT /boot-source", `{"kernel_image_path": "/missing"}`, bad, "kernel file cannot be opened"},
		{"PUT /boot-source", `{"boot_args": "quiet"}`, bad, "missing field `kernel_image_path`"},
		{"PUT /drives/e", drive, bad, "does not match"},
		{"PUT /drives/d", strings.ReplaceAll(drive, disk, "/missing"), bad, "Unable to create the block device"},
		{"PUT /drives/d", strings.ReplaceAll(drive, "Unsafe", "Safe"), bad, "unknown variant"},
		{"PUT /drives/d", strings.ReplaceAll(drive, `"is_root_device": false,`, ""), bad, "missing field `is_root_device`"},
		{"PUT /drives/d", strings.ReplaceAll(drive, `"cache_type"`, `"serial"`), bad, "unknown field"},
		{"PUT /network-interfaces/net", `{"iface_id": "net", "host_dev_name": "name-of-17-bytes-"}`, bad, "Open tap device failed"},
		{"PUT /vsock", fmt.Sprintf(`{"guest_cid": 2, "uds_path": %q}`, shared), bad, "invalid CID"},
		{"PUT /vsock", `{"guest_cid": 3, "uds_path": "/missing/v.sock"}`, bad, "UnixBind"},
		{"PUT /actions", `{"action_type": "InstanceStart"}`, bad, "without kernel configuration"},
		{"PUT /actions", `{"action_type": "Stop"}`, bad, "unknown variant"},
		{"PATCH /vm", `{"state": "Paused"}`, bad, "not supported before starting"},
		{"PUT /snapshot/create", fmt.Sprintf(`{"snapshot_path": %q, "mem_file_path": %q}`, dir+"/s", dir+"/m"), bad, "not supported before starting"},
		{"PUT /snapshot/load", `{"snapshot_path": "/missing", "mem_backend": {"backend_type": "File", "backend_path": "/missing"}}`, bad, "snapshot state from file"},
		{"PUT /snapshot/load", fmt.Sprintf(`{"snapshot_path": %q, "mem_backend": {"backend_type": "File", "backend_path": "/missing"}}`, kernel), bad, "snapshot state from file"},
		{"PUT /snapshot/load", `{"snapshot_path": "/missing", "mem_file_path": "/missing"}`, bad, "unknown field"},
		{"PUT /snapshot/load", `{"snapshot_path": "/missing", "mem_backend": {"backend_type": "File"}}`, bad, "missing field `backend_path`"},
		{"PUT /machine-config", `{"vcpu_count": 1, "mem_size_mib": 128, "smt": false}`, ok, ""},
		{"PUT /boot-source", boot, ok, ""},
		{"PUT /drives/d", drive, ok, ""},
		{"PUT /vsock", fmt.Sprintf(`{"guest_cid": 3, "uds_path": %q}`, shared), ok, ""},
		{"PUT /snapshot/load", `{"snapshot_path": "/missing", "mem_backend": {"backend_type": "File", "backend_path": "/missing"}}`, bad, "after configuring boot-specific resources"},
		{"PUT /actions", `{"action_type": "InstanceStart"}`, bad, "invalid kernel image"},
	} {
		method, path, _ := strings.Cut(c.call, " ")
		w := httptest.NewRecorder()
		api.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(c.body)))
		if body := w.Body.String(); w.Code != c.status || !strings.Contains(body, c.want) || c.status == ok && body != "" {
			t.Errorf("%s %.100s = %d %s, want %d and %q", c.call, c.body, w.Code, body, c.status, c.want)
		} else if c.status == bad && !strings.HasPrefix(body, `{"fault_message":"`) {
			t.Errorf("%s: a refusal of another form: %s", c.call, body)
		}
	}
}
