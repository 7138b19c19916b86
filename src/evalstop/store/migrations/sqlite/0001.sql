-- The log. Sequences have no gaps; a second writer meets the primary key.
CREATE TABLE log (
    sequence INTEGER PRIMARY KEY,
    time     REAL NOT NULL,
    event    BLOB NOT NULL,
    actions  BLOB NOT NULL
);
-- Which jobs an entry concerns, for the story of one job.
CREATE TABLE concerns (
    job      TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    PRIMARY KEY (job, sequence)
) WITHOUT ROWID;
-- Launch records, snapshots, tokens, answers to idempotency keys.
CREATE TABLE documents (
    kind TEXT NOT NULL,
    key  TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (kind, key)
) WITHOUT ROWID;
