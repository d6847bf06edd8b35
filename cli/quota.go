package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"

	"glasshouse/api/client"
	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/id"

	"github.com/spf13/cobra"
)

// quotaFlags are the flags with the limits of a token.
type quotaFlags struct {
	jails        int
	memory, disk string
}

func (f *quotaFlags) add(cmd *cobra.Command) {
	cmd.Flags().IntVar(&f.jails, "max-jails", 0, "maximum number of its jails; 0 is unlimited")
	cmd.Flags().StringVar(&f.memory, "max-memory", "", "maximum memory of its jails, such as 8GiB; 0 is unlimited")
	cmd.Flags().StringVar(&f.disk, "max-disk", "", "maximum disk of its jails, such as 50GiB; 0 is unlimited")
}

// change returns the limits whose flags are set.
func (f *quotaFlags) change(cmd *cobra.Command) (wire.EditQuota, error) {
	var e wire.EditQuota
	if cmd.Flags().Changed("max-jails") {
		e.Jails = &f.jails
	}
	for _, one := range []struct {
		flag, value string
		to          **int64
	}{{"max-memory", f.memory, &e.Memory}, {"max-disk", f.disk, &e.Disk}} {
		var n int64
		if one.value != "0" {
			var err error
			n, err = mebibytes(one.flag, one.value)
			if err != nil {
				return e, err
			}
		}
		if cmd.Flags().Changed(one.flag) {
			n *= mebibyte
			*one.to = &n
		}
	}
	return e, nil
}

// quota returns the quota of a new token.
func (f *quotaFlags) quota(cmd *cobra.Command) (q wire.Quota, err error) {
	e, err := f.change(cmd)
	if e.Jails != nil {
		q.Jails = *e.Jails
	}
	if e.Memory != nil {
		q.Memory = *e.Memory
	}
	if e.Disk != nil {
		q.Disk = *e.Disk
	}
	return q, err
}

func (c *command) tokenQuota() *cobra.Command {
	var limits quotaFlags
	cmd := &cobra.Command{
		Use: "quota ID", Short: "Show or change what a token or an E2B key may create", Args: cobra.ExactArgs(1),
		Long: `Change the limits for the jails that are created with a token or an E2B key. Flags
that are not set keep their limits. If a limit is lowered below the use, nothing ends,
but further creations are refused.

Without flags, show the limits and what the jails of the token demand.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			e, err := limits.change(cmd)
			if err != nil {
				return err
			}
			cl, err := c.client(cmd.Context())
			if err != nil {
				return err
			}
			if e != (wire.EditQuota{}) {
				if _, err := cl.UpdateToken(cmd.Context(), id.Token(args[0]), wire.EditToken{Quota: e}); err != nil {
					return err
				}
			}
			all, err := client.Collect(cl.Tokens(cmd.Context()))
			if err != nil {
				return err
			}
			i := slices.IndexFunc(all, func(t wire.Token) bool { return string(t.ID) == args[0] })
			if i < 0 {
				return fault.Newf(fault.NotFound, "cli.tokenQuota", args[0], "no such token")
			}
			return c.print(all[i], func(w io.Writer) {
				cells := quotaCells(all[i])
				fmt.Fprintf(w, "jails   %s\nmemory  %s\ndisk    %s\n", cells[0], cells[1], cells[2])
			})
		},
	}
	limits.add(cmd)
	return cmd
}

// quotaCells describes the jails, the memory and the disk of a token: "2 of 10" of a limit, or "2".
func quotaCells(t wire.Token) []string {
	var used wire.Demand
	if t.Used != nil {
		used = *t.Used
	}
	of := func(used, limit int64, text func(int64) string) string {
		if limit == 0 {
			return text(used)
		}
		return text(used) + " of " + text(limit)
	}
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	return []string{of(int64(used.Jails), int64(t.Quota.Jails), number), of(used.Memory, t.Quota.Memory, size), of(used.Disk, t.Quota.Disk, size)}
}
