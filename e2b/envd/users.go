package envd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"

	"connectrpc.com/connect"

	"glasshouse/fault"
	"glasshouse/jail"
	"glasshouse/jail/init/protocol"
)

// defaultUser is the user of requests that name none, unless the sandbox has another default.
const defaultUser = "user"

// user returns the name of the user that the request runs as.
func (v *visit) user() (string, error) {
	name, _, _ := (&http.Request{Header: v.header}).BasicAuth()
	return v.named(name)
}

// named validates a user name; "" is the default user. It rejects numbers and colons because
// init accepts "name:group" and "uid" where it accepts a name.
func (v *visit) named(name string) (string, error) {
	if name == "" {
		name = v.User
	}
	if name == "" {
		name = defaultUser
	}
	if strings.Trim(name, "0123456789") == "" || len(name) > 256 || strings.ContainsAny(name, ":\x00/\n") {
		return "", connect.NewError(connect.CodeUnauthenticated, fmt.Errorf("invalid username: %.64q", name))
	}
	return name, nil
}

// An account is a user of the jail.
type account struct {
	name, home string
	owner      protocol.Owner
}

// maxAccounts is the maximum number of bytes read from /etc/passwd and /etc/group, which the
// jail controls.
const maxAccounts = 4 << 20

// accountOf looks up a user in the jail's /etc/passwd. The error has
// connect.CodeUnauthenticated if the user does not exist.
func accountOf(ctx context.Context, f jail.Files, name string) (account, error) {
	a := account{name: name}
	found := false
	err := lines(ctx, f, "/etc/passwd", func(line []string) {
		if found || len(line) < 7 || line[0] != name {
			return
		}
		uid, uidErr := strconv.ParseUint(line[2], 10, 32)
		gid, gidErr := strconv.ParseUint(line[3], 10, 32)
		if uidErr == nil && gidErr == nil {
			found, a.home, a.owner = true, path.Join("/", line[5]), protocol.Owner{UID: uint32(uid), GID: uint32(gid)}
		}
	})
	if err == nil && !found {
		err = connect.NewError(connect.CodeUnauthenticated, fmt.Errorf("invalid username: '%.64s'", name))
	}
	return a, err
}

// lines calls take with the colon-separated fields of each line of a file. A missing file has
// no lines.
func lines(ctx context.Context, f jail.Files, name string, take func([]string)) error {
	body, _, err := f.Read(ctx, name, 0, maxAccounts)
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s of the sandbox: %w", name, err)
	}
	defer body.Close()
	text := bufio.NewScanner(io.LimitReader(body, maxAccounts))
	for text.Scan() {
		take(strings.Split(text.Text(), ":"))
	}
	if err := text.Err(); !errors.Is(err, bufio.ErrTooLong) {
		return err
	}
	return nil // not a valid passwd or group file
}

// names are the names of the user and group ids in a jail.
type names struct{ users, groups map[uint32]string }

func namesIn(ctx context.Context, f jail.Files) (names, error) {
	n := names{map[uint32]string{}, map[uint32]string{}}
	for name, to := range map[string]map[uint32]string{"/etc/passwd": n.users, "/etc/group": n.groups} {
		err := lines(ctx, f, name, func(line []string) {
			if len(line) < 4 {
				return
			}
			if i, err := strconv.ParseUint(line[2], 10, 32); err == nil && to[uint32(i)] == "" {
				to[uint32(i)] = strings.ToValidUTF8(line[0], "�")
			}
		})
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

func called(names map[uint32]string, i uint32) string {
	if name := names[i]; name != "" {
		return name
	}
	return strconv.FormatUint(uint64(i), 10)
}
