-- team is the token that a volume was made with. Its files are in the data directory.
CREATE TABLE volumes (
	id       TEXT PRIMARY KEY,
	team     TEXT NOT NULL,
	name     TEXT NOT NULL,
	document TEXT NOT NULL,
	UNIQUE (team, name)
);
