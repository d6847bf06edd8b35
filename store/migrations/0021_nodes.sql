-- A lease per daemon replaces one per session. host, nonce and epoch are described in
-- fleet.Node; until is the end of the lease, by the clock of the database.
CREATE TABLE nodes (
	id      TEXT PRIMARY KEY,
	name    TEXT NOT NULL,
	version TEXT NOT NULL,
	host    TEXT NOT NULL,
	nonce   TEXT NOT NULL,
	epoch   BIGINT NOT NULL,
	until   BIGINT NOT NULL,
	state   TEXT NOT NULL
);
-- Daemons of earlier versions keep their sessions until their last lease ends.
INSERT INTO nodes (id, name, version, host, nonce, epoch, until, state)
	SELECT holder, '', '', '', '', 0, MAX(until), 'up' FROM sessions WHERE holder <> '' GROUP BY holder;
ALTER TABLE sessions DROP COLUMN until;
-- The epoch of holder's node; the node that starts waiting runs of the session; whether it has
-- any. A waiting run is active, or paused until a daemon continues it.
ALTER TABLE sessions ADD COLUMN epoch BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN assignee TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN waiting BIGINT NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN waiting BIGINT NOT NULL DEFAULT 0;
UPDATE runs SET waiting = 1 WHERE state IN ('active', 'paused');
UPDATE sessions SET waiting = 1 WHERE id IN (SELECT session FROM runs WHERE waiting = 1);
CREATE INDEX runs_waiting ON runs (session) WHERE waiting = 1;
CREATE INDEX sessions_waiting ON sessions (holder, assignee) WHERE waiting = 1;
