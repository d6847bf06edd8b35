-- What a node reports about its host, as JSON.
ALTER TABLE nodes ADD COLUMN facts TEXT NOT NULL DEFAULT '';
