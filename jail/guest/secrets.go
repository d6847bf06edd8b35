package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"glasshouse/fault"
	"glasshouse/host/secretfs"
	"glasshouse/jail"
	"glasshouse/jail/guest/wire"
)

// secretsArg makes the agent's program a process that decrypts secrets and shows them in the jail. No
// other memory of the machine gets a copy: a snapshot would contain it. When the process ends, the
// kernel erases its memory (the option init_on_free).
const secretsArg = "secrets"

// deliveryTime limits how long that process waits for the secrets.
const deliveryTime = 2 * time.Minute

// A delivery is that process, while it waits for the secrets.
type delivery struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    io.Reader
	cancel context.CancelFunc
}

// end ends the process, if it has not ended.
func (d *delivery) end() error {
	d.cancel()
	return d.cmd.Wait()
}

// secretKey starts the process, and returns the public key for the secrets.
func (a *agent) secretKey(_ context.Context, in wire.SecretKey) (wire.SecretKey, error) {
	b, err := a.running()
	if err != nil {
		return wire.SecretKey{}, err
	}
	if err := reseed(in.Seed); err != nil { // a branch has the random numbers of its snapshot until it runs
		return wire.SecretKey{}, fmt.Errorf("seed the random numbers: %w", err)
	}
	d, err := startDelivery(b.init.Process.Pid)
	if err != nil {
		return wire.SecretKey{}, fmt.Errorf("start to decrypt secrets: %w", err)
	}
	key := make([]byte, wire.SecretKeySize)
	if _, err := io.ReadFull(d.out, key); err != nil {
		return wire.SecretKey{}, errors.Join(fmt.Errorf("make a key for secrets: %w", err), d.end())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.delivery != nil {
		a.delivery.end()
	}
	a.delivery = d
	return wire.SecretKey{Key: key}, nil
}

// startDelivery starts the process for the jail of an init.
func startDelivery(init int) (*delivery, error) {
	ctx, cancel := context.WithTimeout(context.Background(), deliveryTime)
	d := &delivery{cmd: exec.CommandContext(ctx, wire.AgentPath, secretsArg, strconv.Itoa(init)), cancel: cancel}
	d.cmd.Dir, d.cmd.Stderr = "/", os.Stderr
	var err, outErr error
	d.in, err = d.cmd.StdinPipe()
	d.out, outErr = d.cmd.StdoutPipe()
	if err := errors.Join(err, outErr); err != nil {
		cancel()
		return nil, err
	}
	if err := d.cmd.Start(); err != nil { // closes the pipes
		cancel()
		return nil, err
	}
	return d, nil
}

// secrets makes exactly the files with these secrets visible in the jail.
func (a *agent) secrets(_ context.Context, in wire.SealedSecrets) (none, error) {
	a.mu.Lock()
	d := a.delivery
	a.delivery = nil
	a.mu.Unlock()
	if d == nil {
		return none{}, fault.Newf(fault.Conflict, "guest.secrets", "", "the secrets have no key")
	}
	defer d.end()
	_, err := d.in.Write(in.Data)
	if err := errors.Join(err, d.in.Close()); err != nil {
		return none{}, fmt.Errorf("decrypt secrets: %w", err)
	}
	answer, err := io.ReadAll(io.LimitReader(d.out, 64<<10))
	if err != nil {
		return none{}, fmt.Errorf("show secrets: %w", err)
	}
	if err := d.cmd.Wait(); err == nil {
		return none{}, nil
	}
	var f wire.Failure
	if err := json.Unmarshal(answer, &f); err != nil {
		return none{}, fmt.Errorf("show secrets: %s", d.cmd.ProcessState)
	}
	return none{}, f.Fault("guest.secrets")
}

// hideSecrets removes and erases all files with secrets.
func (a *agent) hideSecrets(context.Context, none) (none, error) {
	b, err := a.running()
	if err != nil {
		return none{}, err
	}
	return none{}, inNamespace(b.init.Process.Pid, secretfs.Namespace.Hide)
}

// account returns the ids of a user of the jail.
func (a *agent) account(ctx context.Context, in wire.Account) (wire.Account, error) {
	b, err := a.running()
	if err != nil {
		return in, err
	}
	in.UID, in.GID, err = jail.Account(ctx, b.init.Process.Pid, in.User)
	return in, err
}

// inNamespace calls do with the mount namespace of the jail of an init.
func inNamespace(init int, do func(secretfs.Namespace) error) error {
	fd, err := unix.PidfdOpen(init, 0)
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(fd)
	return do(secretfs.Namespace{PID: init, PIDFD: fd, UID: ids.First, GID: ids.First})
}

// showSecrets is the main function of the process with secretsArg. It prints its public key, reads the
// encrypted secrets, and prints a failure.
func showSecrets(args []string) int {
	if err := decryptSecrets(args); err != nil {
		json.NewEncoder(os.Stdout).Encode(wire.FailureOf(err))
		return 1
	}
	return 0
}

func decryptSecrets(args []string) error {
	if len(args) != 1 {
		return errors.New("the process of init is missing")
	}
	init, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	key, err := wire.NewSecretKey()
	if err != nil {
		return err
	}
	if _, err := os.Stdout.Write(key.PublicKey().Bytes()); err != nil {
		return err
	}
	sealed, err := io.ReadAll(io.LimitReader(os.Stdin, maxRequest))
	if err != nil {
		return err
	}
	files, err := wire.OpenSecrets(key, sealed)
	if err != nil {
		return fault.New(fault.Invalid, "guest.secrets", "", err)
	}
	shown := make([]secretfs.File, len(files))
	for n, f := range files {
		uid, gid, err := jail.SecretFile{UID: f.UID, GID: f.GID}.Host(ids)
		if err != nil {
			return fault.New(fault.Invalid, "guest.secrets", f.Name, err)
		}
		shown[n] = secretfs.File{Name: f.Name, Data: f.Data, UID: uid, GID: gid}
	}
	return inNamespace(init, func(n secretfs.Namespace) error { return n.Show(shown) })
}
