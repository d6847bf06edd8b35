-- An entry of the chain is its line; the columns beside it are what is asked
-- for, null where the entry says nothing. nodes are the tree's hashes that the
-- entry completes.
CREATE TABLE chain_entries (
	seq        BIGINT PRIMARY KEY,
	time       BIGINT NOT NULL,
	kind       TEXT NOT NULL,
	parent     BIGINT,
	jail       TEXT,
	session    TEXT,
	run        TEXT,
	capability TEXT,
	line       TEXT NOT NULL,
	nodes      TEXT NOT NULL
);
CREATE INDEX chain_entries_time ON chain_entries (time, seq);
CREATE INDEX chain_entries_kind ON chain_entries (kind, seq);
CREATE INDEX chain_entries_parent ON chain_entries (parent, seq) WHERE parent IS NOT NULL;
CREATE INDEX chain_entries_jail ON chain_entries (jail, seq) WHERE jail IS NOT NULL;
CREATE INDEX chain_entries_session ON chain_entries (session, seq) WHERE session IS NOT NULL;
CREATE INDEX chain_entries_run ON chain_entries (run, seq) WHERE run IS NOT NULL;
CREATE INDEX chain_entries_capability ON chain_entries (capability, seq) WHERE capability IS NOT NULL;

-- how large the tree was, and the note that was signed over it
CREATE TABLE chain_checkpoints (
	size BIGINT PRIMARY KEY,
	note TEXT NOT NULL
);
