-- Version 2: where clients are. Gateways with version 1 of the tables ignore it.
SET LOCAL search_path = pleach, pg_temp;

CREATE TABLE places (
    -- Key of the client, as in the table of clients.
    public_key TEXT NOT NULL PRIMARY KEY,
    -- Name of the gateway to which the client has connected last.
    gateway TEXT NOT NULL,
    -- Time of that by the clock of the database, in milliseconds since 1970.
    since BIGINT NOT NULL
);

-- Gateways that a client has left and that do not know this yet.
CREATE TABLE former_places (
    gateway TEXT NOT NULL,
    public_key TEXT NOT NULL REFERENCES places ON DELETE CASCADE,
    -- When the client has left it, as in `places`.
    since BIGINT NOT NULL,
    PRIMARY KEY (gateway, public_key)
);
CREATE INDEX former_places_client ON former_places (public_key);

CREATE FUNCTION note_former_place() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM former_places WHERE gateway = NEW.gateway AND public_key = NEW.public_key;
    INSERT INTO former_places VALUES (OLD.gateway, NEW.public_key, NEW.since)
    ON CONFLICT (gateway, public_key) DO UPDATE SET since = excluded.since;
    RETURN NULL;
END $$;
CREATE TRIGGER client_moved AFTER UPDATE ON places
    FOR EACH ROW WHEN (OLD.gateway <> NEW.gateway) EXECUTE FUNCTION note_former_place();

CREATE FUNCTION forget_places() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM places USING before WHERE places.public_key = before.public_key;
    RETURN NULL;
END $$;
CREATE TRIGGER clients_left AFTER DELETE ON clients
    REFERENCING OLD TABLE AS before FOR EACH STATEMENT EXECUTE FUNCTION forget_places();

UPDATE store SET version = 2;
