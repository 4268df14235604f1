-- Version 2: where clients are. Gateways with version 1 of the tables ignore it.
SET LOCAL search_path = pleach, pg_temp;

CREATE TABLE places (
    -- Key of the client, as in the table of clients.
    public_key TEXT NOT NULL PRIMARY KEY,
    -- Name of the gateway to which the client has connected last.
    gateway TEXT NOT NULL,
    -- Time of that by the clock of the database, in milliseconds since 1970.
    since BIGINT NOT NULL,
    -- Gateway that the client has left and that does not know this yet, or NULL.
    former TEXT
);
CREATE INDEX places_former ON places (former) WHERE former IS NOT NULL;

CREATE FUNCTION forget_places() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM places USING before WHERE places.public_key = before.public_key;
    RETURN NULL;
END $$;
CREATE TRIGGER clients_left AFTER DELETE ON clients
    REFERENCING OLD TABLE AS before FOR EACH STATEMENT EXECUTE FUNCTION forget_places();

UPDATE store SET version = 2;
