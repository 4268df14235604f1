-- Version 1: clients, invitations, and the list of changes by which gateways learn what to ask again.
CREATE TABLE store (
    -- Identifies this store: a copy that goes its own way must get another value.
    id TEXT NOT NULL
) STRICT;
INSERT INTO store VALUES (lower(hex(randomblob(16))));

CREATE TABLE clients (
    name TEXT NOT NULL PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 32),
    -- Base64, as `pleach pubkey` prints it.
    public_key TEXT NOT NULL UNIQUE CHECK (length(public_key) = 44),
    -- Base64, or NULL for none.
    preshared_key TEXT,
    -- Inner addresses, separated by commas: '10.77.0.2/32, fd77::2/128'.
    allowed_ips TEXT NOT NULL CHECK (allowed_ips <> ''),
    -- Caps in bit/s, or NULL for none.
    rate_up INTEGER CHECK (rate_up > 0),
    rate_down INTEGER CHECK (rate_down > 0),
    -- Seconds since 1970.
    added_at INTEGER NOT NULL DEFAULT (unixepoch()),
    -- Id of the invitation that the client has used, or NULL.
    invitation TEXT UNIQUE
) STRICT, WITHOUT ROWID;

CREATE TABLE invitations (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    -- Key derived from the secret of the invitation, base64.
    key TEXT NOT NULL,
    -- Seconds since 1970.
    expires_at INTEGER NOT NULL,
    -- Inner addresses that are reserved for the client, separated by commas.
    addresses TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    public_key TEXT NOT NULL
) STRICT;

CREATE TRIGGER client_added AFTER INSERT ON clients BEGIN
    INSERT INTO changes (public_key) VALUES (NEW.public_key);
END;
CREATE TRIGGER client_changed AFTER UPDATE ON clients BEGIN
    INSERT INTO changes (public_key) VALUES (OLD.public_key);
    INSERT INTO changes (public_key) SELECT NEW.public_key WHERE NEW.public_key <> OLD.public_key;
END;
CREATE TRIGGER client_removed AFTER DELETE ON clients BEGIN
    INSERT INTO changes (public_key) VALUES (OLD.public_key);
END;
-- A gateway that has missed more changes asks again about all of its clients.
CREATE TRIGGER changes_bounded AFTER INSERT ON changes BEGIN
    DELETE FROM changes WHERE number <= NEW.number - 100000;
END;
