-- Version 2: bytes of clients.
CREATE TABLE usage (
    -- Name of the client. The row stays when the client is removed.
    name TEXT NOT NULL PRIMARY KEY,
    -- Inner bytes from the client and to the client.
    up_bytes INTEGER NOT NULL DEFAULT 0,
    down_bytes INTEGER NOT NULL DEFAULT 0,
    -- Time of the last change, in seconds since 1970.
    at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The last batch of bytes that each process of a gateway has added, so that none is added twice.
CREATE TABLE runs (
    id TEXT NOT NULL PRIMARY KEY,
    batch INTEGER NOT NULL,
    at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
