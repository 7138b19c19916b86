-- The log. Sequences have no gaps; a second writer meets the primary key.
CREATE TABLE log (
    sequence BIGINT PRIMARY KEY,
    time     DOUBLE PRECISION NOT NULL,
    event    BYTEA NOT NULL,
    actions  BYTEA NOT NULL
);
-- Which jobs an entry concerns, for the story of one job.
CREATE TABLE concerns (
    job      TEXT NOT NULL,
    sequence BIGINT NOT NULL,
    PRIMARY KEY (job, sequence)
);
-- Launch records, snapshots, tokens, answers to idempotency keys.
CREATE TABLE documents (
    kind TEXT NOT NULL,
    key  TEXT NOT NULL,
    data BYTEA NOT NULL,
    PRIMARY KEY (kind, key)
);
