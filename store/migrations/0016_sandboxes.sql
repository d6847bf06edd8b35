-- team is the token that a sandbox was made with.
CREATE TABLE sandboxes (
	id       TEXT PRIMARY KEY,
	team     TEXT NOT NULL,
	state    TEXT NOT NULL,
	document TEXT NOT NULL
);
