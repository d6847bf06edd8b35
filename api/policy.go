package api

import (
	"time"

	"glasshouse/api/wire"
	"glasshouse/fault"
	"glasshouse/internal/text"
	"glasshouse/jail"
)

func policyOf(w wire.Snapshots) (jail.Snapshots, error) {
	p := jail.Snapshots{Before: w.Before, After: w.After, Keep: jail.Keep(w.Keep), KeepConnections: w.KeepConnections}
	if w.Every == "" {
		return p, nil
	}
	var err error
	p.Every, err = time.ParseDuration(w.Every)
	if err != nil || p.Every == 0 {
		return p, fault.Fieldf("api.policyOf", "snapshots.every", "%q is not a duration such as 10m", text.Clip(w.Every, 64))
	}
	return p, nil
}

func policyShown(p jail.Snapshots) wire.Snapshots {
	w := wire.Snapshots{Before: p.Before, After: p.After, Keep: wire.Keep(p.Keep), KeepConnections: p.KeepConnections}
	if p.Every > 0 {
		w.Every = p.Every.String()
	}
	return w
}
