package probe

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
)

// The probe starts a guest, unless /dev/kvm is known to be unable to, and reports if that fails.
func TestGuestOfKVM(t *testing.T) {
	detail, err := kvm(t.Context(), Host{})
	fd, open := unix.Open("/dev/kvm", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if open != nil {
		if err == nil {
			t.Errorf("the probe reports %q, but /dev/kvm cannot be opened: %v", detail, open)
		}
		return
	}
	defer unix.Close(fd)
	began := time.Now()
	guest := bootGuest(fd, 100*time.Millisecond)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the guest had a limit of 100 ms and took %s", took)
	}
	if guest != nil && !errors.Is(guest, errors.ErrUnsupported) && !errors.Is(err, fault.Unsupported) {
		t.Errorf("the guest fails with %v, and the probe reports %q, %v", guest, detail, err)
	}
	if _, pvm := os.Stat("/sys/module/kvm_pvm"); pvm == nil && guest == nil {
		t.Error("PVM executed a guest that it does not support")
	}
}

func TestPVMIsNotKVM(t *testing.T) {
	modules := t.TempDir()
	if err := os.MkdirAll(filepath.Join(modules, "kvm_intel"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := kvmKind(modules, "API 12"); err != nil || got != "API 12" {
		t.Errorf("with kvm_intel: %q, %v; want API 12", got, err)
	}
	if err := os.Rename(filepath.Join(modules, "kvm_intel"), filepath.Join(modules, "kvm_pvm")); err != nil {
		t.Fatal(err)
	}
	if _, err := kvmKind(modules, "API 12"); !errors.Is(err, fault.Unsupported) || fault.RemedyOf(err) == "" {
		t.Errorf("with kvm_pvm: %v, want unsupported, with a remedy", err)
	}
}
