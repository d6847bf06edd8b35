CREATE TABLE approvals (
	id         TEXT PRIMARY KEY,
	jail       TEXT NOT NULL,
	state      TEXT NOT NULL,
	unfinished BIGINT NOT NULL,
	created    BIGINT NOT NULL,
	document   TEXT NOT NULL
);
CREATE INDEX approvals_by_created ON approvals (created, id);
CREATE INDEX approvals_by_jail ON approvals (jail, created);
CREATE INDEX approvals_unfinished ON approvals (unfinished, created);

CREATE TABLE approval_notices (
	id       TEXT PRIMARY KEY,
	created  BIGINT NOT NULL,
	document TEXT NOT NULL
);

CREATE TABLE approval_links (
	hash     TEXT PRIMARY KEY,
	expires  BIGINT NOT NULL,
	document TEXT NOT NULL
);
CREATE INDEX approval_links_by_expires ON approval_links (expires);
