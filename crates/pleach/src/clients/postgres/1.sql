-- Version 1. As the tables in SQLite (../sqlite/1.sql, ../sqlite/2.sql), with the types of PostgreSQL.
CREATE SCHEMA IF NOT EXISTS pleach;
SET LOCAL search_path = pleach, pg_temp;

CREATE TABLE store (
    -- Identifies this store: a copy that goes its own way must get another value.
    id TEXT NOT NULL,
    -- Version of these tables.
    version BIGINT NOT NULL,
    -- Oldest version of the tables whose programs may use these.
    oldest BIGINT NOT NULL
);
INSERT INTO store VALUES (md5(random()::text || clock_timestamp()::text), 1, 1);

CREATE TABLE clients (
    name TEXT NOT NULL PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 32),
    -- Base64, as `pleach pubkey` prints it.
    public_key TEXT NOT NULL UNIQUE CHECK (length(public_key) = 44),
    -- Base64, or NULL for none.
    preshared_key TEXT,
    -- Inner addresses, separated by commas: '10.77.0.2/32, fd77::2/128'.
    allowed_ips TEXT NOT NULL CHECK (allowed_ips <> ''),
    -- Caps in bit/s, or NULL for none.
    rate_up BIGINT CHECK (rate_up > 0),
    rate_down BIGINT CHECK (rate_down > 0),
    -- Seconds since 1970.
    added_at BIGINT NOT NULL DEFAULT (extract(epoch FROM now())::bigint),
    -- Id of the invitation that the client has used, or NULL.
    invitation TEXT UNIQUE
);

CREATE TABLE invitations (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    -- Key derived from the secret of the invitation, base64.
    key TEXT NOT NULL,
    -- Seconds since 1970.
    expires_at BIGINT NOT NULL,
    -- Inner addresses that are reserved for the client, separated by commas.
    addresses TEXT NOT NULL
);

CREATE TABLE changes (
    number BIGINT PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    public_key TEXT NOT NULL
);

-- Transactions that change clients or invitations follow each other, whoever makes them, so that no address is given twice,
-- and numbers of changes become visible in their order: a gateway would miss a change that is committed after one with a
-- higher number. All functions run with the rights of the tables' owner, because other programs need rights on the table of
-- clients alone.
CREATE FUNCTION take_turns() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(1886151528);
    IF TG_OP = 'TRUNCATE' AND TG_TABLE_NAME = 'clients' THEN
        INSERT INTO changes (public_key) SELECT public_key FROM clients;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER clients_turn BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON clients
    FOR EACH STATEMENT EXECUTE FUNCTION take_turns();
CREATE TRIGGER invitations_turn BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON invitations
    FOR EACH STATEMENT EXECUTE FUNCTION take_turns();

-- The triggers work on whole statements, so that an import of very many clients takes seconds.
CREATE FUNCTION note_changes() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO changes (public_key) SELECT public_key FROM before;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO changes (public_key) SELECT public_key FROM after;
    END IF;
    -- A gateway that has missed more changes asks again about all of its clients.
    DELETE FROM changes WHERE number <= (SELECT max(number) FROM changes) - 100000;
    RETURN NULL;
END $$;
CREATE TRIGGER clients_added AFTER INSERT ON clients
    REFERENCING NEW TABLE AS after FOR EACH STATEMENT EXECUTE FUNCTION note_changes();
CREATE TRIGGER clients_changed AFTER UPDATE ON clients
    REFERENCING OLD TABLE AS before NEW TABLE AS after FOR EACH STATEMENT EXECUTE FUNCTION note_changes();
CREATE TRIGGER clients_removed AFTER DELETE ON clients
    REFERENCING OLD TABLE AS before FOR EACH STATEMENT EXECUTE FUNCTION note_changes();

CREATE TABLE usage (
    -- Name of the client. The row stays when the client is removed.
    name TEXT NOT NULL PRIMARY KEY,
    -- Inner bytes from the client and to the client.
    up_bytes BIGINT NOT NULL DEFAULT 0,
    down_bytes BIGINT NOT NULL DEFAULT 0,
    -- Time of the last change, in seconds since 1970.
    at BIGINT NOT NULL
);

-- The last batch of bytes that each process of a gateway has added, so that none is added twice.
CREATE TABLE runs (
    id TEXT NOT NULL PRIMARY KEY,
    batch BIGINT NOT NULL,
    at BIGINT NOT NULL
);
