ALTER TABLE deliveries ADD COLUMN receiver TEXT NOT NULL DEFAULT '';
ALTER TABLE deliveries ADD COLUMN taker TEXT NOT NULL DEFAULT '';
UPDATE deliveries SET receiver = substr(id, length(message) + 2);
DROP INDEX deliveries_due;
CREATE INDEX deliveries_due ON deliveries (receiver, due, id) WHERE state = 'pending';
CREATE INDEX deliveries_by_state ON deliveries (receiver, state, due, id);
CREATE INDEX deliveries_taken ON deliveries (taker) WHERE taker <> '';
