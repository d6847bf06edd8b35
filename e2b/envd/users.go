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
	"glasshouse/jailinit/protocol"
)

// defaultUser is whom requests are for that name nobody.
const defaultUser = "user"

// user is the name of whom a request is for.
func (v *visit) user() (string, error) {
	name, _, _ := (&http.Request{Header: v.header}).BasicAuth()
	return v.named(name)
}

// named is the user of this name, or whom requests are for that name nobody. Names go
// into what init reads as "name:group" and "uid".
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

// maxAccounts bounds what is read of /etc/passwd and /etc/group, which are the jail's
// to write.
const maxAccounts = 4 << 20

// accountOf looks a user up in the jail. It is connect.CodeUnauthenticated if there is
// none.
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

// lines gives the fields of a file's lines to take. A file that is not there has none.
func lines(ctx context.Context, f jail.Files, name string, take func([]string)) error {
	body, _, err := f.Read(ctx, name, 0, maxAccounts)
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer body.Close()
	text := bufio.NewScanner(io.LimitReader(body, maxAccounts))
	for text.Scan() {
		take(strings.Split(text.Text(), ":"))
	}
	if err := text.Err(); !errors.Is(err, bufio.ErrTooLong) {
		return err
	}
	return nil // what the jail has there is no list of accounts
}

// names are what ids are called in a jail.
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
