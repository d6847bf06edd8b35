-- own says whose a secret is alone, as JSON; empty for one of the daemon's
ALTER TABLE secrets ADD COLUMN own TEXT NOT NULL DEFAULT '';
