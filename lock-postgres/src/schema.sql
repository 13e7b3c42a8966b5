-- The tables and functions of distlock. `@s@` stands for the quoted name of the schema.
--
-- Each request of a client is one call of one function, and so one transaction. A function first
-- locks the row of the name in `locks`. All other rows of the name are read and written only by a
-- transaction that has this row lock, so each function is atomic. It reads the clock after it has
-- the row lock: a request that waited for the row lock must not use the time before the wait.
--
-- Times are `clock_timestamp()` of this server. Durations are in microseconds. A name has at most
-- one row, which is deleted when the name was unused for the time in which tokens are retained.

CREATE TABLE @s@.locks (
    name text COLLATE "C" PRIMARY KEY,
    -- The holder of a mutex, or the writer. It holds the lock until `expires_at`.
    owner text,
    expires_at timestamptz,
    is_writer boolean NOT NULL DEFAULT false,
    label text,
    label_at timestamptz,
    -- The tokens of the last grant: the first one, and the last one that was reserved with it.
    first_token bigint,
    token bigint,
    -- The number of permits, if the name is that of a semaphore.
    permits integer,
    waiting_writer text COLLATE "C",
    waiting_until timestamptz,
    -- A release publishes a notification if a client watches the name.
    watched_until timestamptz,
    -- The latest end of a row in `shares`, `waiters` and `tombstones`: later, none of them counts.
    shared_until timestamptz,
    queued_until timestamptz,
    closed_until timestamptz,
    used_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- The readers of a read-write lock, and the held permits of a semaphore.
CREATE TABLE @s@.shares (
    name text COLLATE "C" NOT NULL,
    owner text COLLATE "C" NOT NULL,
    -- The permits `first` to `first + count - 1` of the owner's acquisition.
    first integer NOT NULL,
    count integer NOT NULL,
    -- The bytes that the identities of these permits have in common; empty for a reader.
    identity bytea NOT NULL,
    expires_at timestamptz NOT NULL,
    label text,
    label_at timestamptz,
    PRIMARY KEY (name, owner, first)
) WITH (fillfactor = 50);

-- The queues of locks that are granted in the order of arrival.
CREATE TABLE @s@.waiters (
    name text COLLATE "C" NOT NULL,
    owner text COLLATE "C" NOT NULL,
    arrival bigint GENERATED ALWAYS AS IDENTITY,
    present_until timestamptz NOT NULL,
    is_reader boolean NOT NULL,
    is_writer boolean NOT NULL,
    PRIMARY KEY (name, owner)
) WITH (fillfactor = 50);

-- Owners that are granted nothing any more, because a request of theirs may still arrive.
CREATE TABLE @s@.tombstones (
    name text COLLATE "C" NOT NULL,
    owner text COLLATE "C" NOT NULL,
    ends_at timestamptz NOT NULL,
    PRIMARY KEY (name, owner)
);

CREATE FUNCTION @s@.micros(duration interval) RETURNS bigint LANGUAGE sql IMMUTABLE AS
    'SELECT (extract(epoch FROM duration) * 1000000)::bigint';

CREATE FUNCTION @s@.later(moment timestamptz, micros bigint) RETURNS timestamptz
    LANGUAGE sql IMMUTABLE AS
    'SELECT moment + micros * interval ''1 microsecond''';

-- Locks the row of a name, waiting for at most `patience`. Makes the row if `creates`.
CREATE FUNCTION @s@.lock_row(p_name text, patience bigint, creates boolean) RETURNS @s@.locks
    LANGUAGE plpgsql AS $$
DECLARE
    l @s@.locks;
BEGIN
    PERFORM set_config('lock_timeout', greatest(patience / 1000, 1) || 'ms', true);
    LOOP
        SELECT * INTO l FROM @s@.locks WHERE name = p_name FOR NO KEY UPDATE;
        EXIT WHEN FOUND OR NOT creates;
        INSERT INTO @s@.locks (name, used_at) VALUES (p_name, clock_timestamp())
            ON CONFLICT DO NOTHING;
    END LOOP;
    RETURN l;
END $$;

-- Deletes some rows of names that were unused for `retention`: of a hundred pages, anywhere in the
-- table, so that the time does not depend on the size of the table. One client at a time.
CREATE FUNCTION @s@.sweep(retention bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    t CONSTANT timestamptz := clock_timestamp();
    unused_since CONSTANT timestamptz := @s@.later(t, -retention);
    pages CONSTANT bigint := pg_relation_size('@s@.locks') / current_setting('block_size')::bigint;
    page CONSTANT bigint := floor(random() * greatest(pages - 99, 1));
    names text[];
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('distlock sweep'), hashtext('@s@')) THEN
        RETURN;
    END IF;
    SELECT array_agg(unused.name) INTO names FROM (
        SELECT l.name FROM @s@.locks l
        WHERE l.ctid >= format('(%s,0)', page)::tid AND l.ctid < format('(%s,0)', page + 100)::tid
            AND l.used_at < unused_since AND l.permits IS NULL
            AND greatest(l.expires_at, l.waiting_until, l.watched_until, l.shared_until,
                l.queued_until, l.closed_until, '-infinity') < t
        LIMIT 500 FOR UPDATE SKIP LOCKED) unused;
    DELETE FROM @s@.shares s WHERE s.name = ANY (names);
    DELETE FROM @s@.waiters w WHERE w.name = ANY (names);
    DELETE FROM @s@.tombstones d WHERE d.name = ANY (names);
    DELETE FROM @s@.locks l WHERE l.name = ANY (names);
END $$;

-- Removes the waiters at the head of the queue whose presence has ended, except `own`. Returns the
-- head.
CREATE FUNCTION @s@.head(p_name text, own text, t timestamptz) RETURNS @s@.waiters
    LANGUAGE plpgsql AS $$
DECLARE
    first @s@.waiters;
BEGIN
    SELECT * INTO first FROM @s@.waiters w
        WHERE w.name = p_name AND (w.present_until > t OR w.owner = own)
        ORDER BY w.arrival LIMIT 1;
    DELETE FROM @s@.waiters w
        WHERE w.name = p_name AND w.present_until <= t
            AND (first.arrival IS NULL OR w.arrival < first.arrival);
    RETURN first;
END $$;

-- Puts an owner into the queue, or shows that it is still there. Returns whether it is new.
CREATE FUNCTION @s@.enqueue(p_name text, p_owner text, t timestamptz, presence bigint,
    reader boolean, writer boolean) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    is_new CONSTANT boolean := NOT EXISTS (SELECT FROM @s@.waiters w
        WHERE w.name = p_name AND w.owner = p_owner);
BEGIN
    INSERT INTO @s@.waiters AS w (name, owner, present_until, is_reader, is_writer)
        VALUES (p_name, p_owner, @s@.later(t, presence), reader, writer)
        ON CONFLICT (name, owner) DO UPDATE SET present_until = excluded.present_until;
    UPDATE @s@.locks l
        SET queued_until = greatest(l.queued_until, @s@.later(t, presence)), used_at = t
        WHERE l.name = p_name;
    RETURN is_new;
END $$;

-- Removes an owner from the queue. Returns whether the next waiter may now be admitted.
CREATE FUNCTION @s@.give_up(p_name text, p_owner text, is_free boolean, t timestamptz)
    RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    first @s@.waiters := @s@.head(p_name, NULL, t);
BEGIN
    DELETE FROM @s@.waiters w WHERE w.name = p_name AND w.owner = p_owner;
    RETURN FOUND AND (is_free OR coalesce(first.owner = p_owner, false));
END $$;

-- Publishes that waiters of a name may try again.
CREATE FUNCTION @s@.publish(l @s@.locks, t timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF l.watched_until > t THEN
        PERFORM pg_notify(@s@.channel(l.name), l.name);
    END IF;
END $$;

-- The channel on which releases of a name are published: one of 64.
CREATE FUNCTION @s@.channel(p_name text) RETURNS text LANGUAGE sql IMMUTABLE AS
    'SELECT @c@ || (hashtextextended(p_name, 0) & 63)::text';

CREATE FUNCTION @s@.refuse_other_use(l @s@.locks, is_semaphore boolean, t timestamptz)
    RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF is_semaphore AND (l.expires_at > t OR l.permits IS NULL AND l.shared_until > t
        AND EXISTS (SELECT FROM @s@.shares s WHERE s.name = l.name AND s.expires_at > t)) THEN
        RAISE SQLSTATE 'DL001' USING MESSAGE = 'a lock';
    ELSIF NOT is_semaphore AND l.permits IS NOT NULL THEN
        RAISE SQLSTATE 'DL001' USING MESSAGE = 'a semaphore';
    END IF;
END $$;

-- One attempt. `outcome` is `granted` or `busy`; `rest` is the time after which another owner's
-- lease or presence ends.
--
-- `shape` has the properties of the lock's kind: s (shared), r (reader), w (writer), q (queued in
-- the store), p (permits). `reserve` is the number of tokens to reserve; NULL: no token.
CREATE FUNCTION @s@.acquire(
    p_name text, p_owner text, shape text, lease bigint, waits boolean, presence bigint,
    beside text, p_limit integer, p_count integer, p_identity bytea, reserve integer, p_label text,
    writers_first boolean, retention bigint, patience bigint,
    OUT outcome text, OUT rest bigint, OUT first_token bigint, OUT last_token bigint,
    OUT permit_limit integer, OUT permit_count integer)
    LANGUAGE plpgsql AS $$
DECLARE
    is_shared CONSTANT boolean := shape LIKE '%s%';
    is_reader CONSTANT boolean := shape LIKE '%r%';
    is_writer CONSTANT boolean := shape LIKE '%w%';
    is_queued CONSTANT boolean := shape LIKE '%q%';
    is_semaphore CONSTANT boolean := shape LIKE '%p%';
    l @s@.locks;
    t timestamptz;
    until timestamptz;
    is_held boolean;
    is_repeated boolean := false;
    others timestamptz;
    ahead @s@.waiters;
    has_readers boolean;
    had integer;
    taken integer;
    free integer;
    wanted integer;
    missing integer;
    first_end timestamptz;
BEGIN
    outcome := 'busy';
    -- Most refusals need no row lock, because they write nothing.
    IF NOT is_shared AND NOT is_queued AND NOT (is_writer AND waits) THEN
        SELECT * INTO l FROM @s@.locks WHERE name = p_name;
        t := clock_timestamp();
        IF l.expires_at > t AND l.owner <> p_owner THEN
            rest := @s@.micros(l.expires_at - t);
            RETURN;
        END IF;
    END IF;

    l := @s@.lock_row(p_name, patience, true);
    t := clock_timestamp();
    -- Only new names make the table grow. No statement of a sweep waits for a row lock.
    IF l.used_at >= transaction_timestamp() AND retention IS NOT NULL AND random() < 0.02 THEN
        PERFORM @s@.sweep(retention);
    END IF;
    until := @s@.later(t, lease);
    IF l.closed_until > t AND EXISTS (SELECT FROM @s@.tombstones d
        WHERE d.name = p_name AND d.owner = p_owner AND d.ends_at > t) THEN
        RETURN;
    END IF;
    PERFORM @s@.refuse_other_use(l, is_semaphore, t);
    is_held := coalesce(l.expires_at > t, false);
    IF l.shared_until IS NOT NULL THEN
        DELETE FROM @s@.shares s WHERE s.name = p_name AND s.expires_at <= t;
    END IF;
    IF l.waiting_until <= t THEN
        l.waiting_writer := NULL;
    END IF;
    has_readers := l.permits IS NULL AND l.shared_until > t
        AND EXISTS (SELECT FROM @s@.shares s WHERE s.name = p_name);

    IF is_semaphore THEN
        IF l.permits IS NULL THEN
            l.permits := p_limit;
            UPDATE @s@.locks SET permits = p_limit, used_at = t WHERE name = p_name;
        END IF;
        SELECT coalesce(sum(s.count) FILTER (WHERE s.owner = p_owner), 0),
            coalesce(sum(s.count), 0), min(s.expires_at),
            max(s.first + s.count) FILTER (WHERE s.owner = p_owner)
            INTO had, taken, first_end, wanted FROM @s@.shares s WHERE s.name = p_name;
        free := greatest(l.permits - taken, 0);
        wanted := CASE WHEN p_count > 0 THEN p_count WHEN had > 0 THEN wanted
            ELSE greatest(free, 1) END;
        missing := greatest(wanted - had, 0);
        IF missing > 0 AND is_queued AND l.queued_until > t THEN
            ahead := @s@.head(p_name, p_owner, t);
            others := CASE WHEN ahead.owner <> p_owner THEN ahead.present_until END;
        END IF;
        IF missing > 0 AND (wanted > l.permits OR missing > free OR others IS NOT NULL) THEN
            IF wanted > l.permits THEN
                -- At the head of the queue this owner would block all other waiters until the limit
                -- rises.
                DELETE FROM @s@.waiters w WHERE w.name = p_name AND w.owner = p_owner;
                IF FOUND THEN
                    PERFORM @s@.publish(l, t);
                END IF;
            ELSIF is_queued AND waits THEN
                PERFORM @s@.enqueue(p_name, p_owner, t, presence, false, false);
            END IF;
            rest := @s@.micros(coalesce(others, first_end) - t);
            RETURN;
        END IF;
        UPDATE @s@.locks SET used_at = t, shared_until = greatest(shared_until, until)
            WHERE name = p_name;
        DELETE FROM @s@.waiters w WHERE w.name = p_name AND w.owner = p_owner;
        UPDATE @s@.shares s SET expires_at = greatest(s.expires_at, until)
            WHERE s.name = p_name AND s.owner = p_owner;
        IF had = 0 THEN
            INSERT INTO @s@.shares VALUES
                (p_name, p_owner, 0, wanted, p_identity, until, p_label, t);
        ELSIF missing > 0 THEN
            -- A repeated attempt, after an operator has released some of its permits.
            INSERT INTO @s@.shares
                SELECT p_name, p_owner, n, 1, p_identity, until, p_label, t
                FROM generate_series(0, wanted - 1) n
                WHERE NOT EXISTS (SELECT FROM @s@.shares s WHERE s.name = p_name
                    AND s.owner = p_owner AND n >= s.first AND n < s.first + s.count);
        END IF;
        IF is_queued AND missing > 0 AND taken + missing < l.permits THEN
            PERFORM @s@.publish(l, t);
        END IF;
        outcome := 'granted';
        permit_limit := l.permits;
        permit_count := wanted;
        RETURN;
    END IF;

    IF is_reader THEN
        is_repeated := has_readers AND EXISTS (SELECT FROM @s@.shares s
            WHERE s.name = p_name AND s.owner = p_owner);
        IF NOT is_repeated AND is_held AND beside IS DISTINCT FROM l.owner THEN
            others := l.expires_at;
        ELSIF NOT is_repeated AND NOT is_held AND is_queued THEN
            ahead := @s@.head(p_name, p_owner, t);
            others := CASE WHEN ahead.owner <> p_owner THEN ahead.present_until END;
        ELSIF NOT is_repeated AND NOT is_held AND writers_first THEN
            IF l.waiting_writer IS NOT NULL THEN
                others := l.waiting_until;
            ELSIF has_readers AND l.queued_until > t THEN
                ahead := @s@.head(p_name, NULL, t);
                others := CASE WHEN NOT ahead.is_reader THEN ahead.present_until END;
            END IF;
        END IF;
        IF others IS NOT NULL THEN
            -- The head of the queue is notified by new waiters only: while a dead one is there, others
            -- would notify each other all the time.
            IF is_queued AND waits
                AND @s@.enqueue(p_name, p_owner, t, presence, true, false)
                AND NOT is_held AND NOT has_readers THEN
                PERFORM @s@.publish(l, t);
            END IF;
            rest := @s@.micros(others - t);
            RETURN;
        END IF;
        DELETE FROM @s@.waiters w
            WHERE is_queued AND w.name = p_name AND w.owner = p_owner;
        INSERT INTO @s@.shares AS s VALUES (p_name, p_owner, 0, 1, '', until, p_label, t)
            ON CONFLICT (name, owner, first)
            DO UPDATE SET expires_at = greatest(s.expires_at, until);
        UPDATE @s@.locks SET shared_until = greatest(shared_until, until), used_at = t
            WHERE name = p_name;
        IF NOT is_repeated AND NOT is_held AND l.queued_until > t THEN
            ahead := @s@.head(p_name, NULL, t);
            IF ahead.is_reader THEN
                PERFORM @s@.publish(l, t);
            END IF;
        END IF;
        outcome := 'granted';
        IF reserve IS NOT NULL THEN
            first_token := l.token;
            last_token := l.token;
        END IF;
        RETURN;
    END IF;

    is_repeated := is_held AND l.owner = p_owner;
    IF NOT is_repeated THEN
        others := CASE WHEN is_held THEN l.expires_at
            WHEN has_readers THEN (SELECT max(s.expires_at) FROM @s@.shares s
                WHERE s.name = p_name) END;
        IF others IS NULL AND is_queued THEN
            -- A free lock is reserved for the head of the queue until the head's presence ends.
            ahead := @s@.head(p_name, p_owner, t);
            others := CASE WHEN ahead.owner <> p_owner THEN ahead.present_until END;
        END IF;
        IF others IS NOT NULL THEN
            IF waits AND is_queued THEN
                IF @s@.enqueue(p_name, p_owner, t, presence, false, is_writer)
                    AND NOT is_held AND NOT has_readers THEN
                    PERFORM @s@.publish(l, t);
                END IF;
            ELSIF waits AND is_writer AND writers_first
                AND coalesce(l.waiting_writer = p_owner, true) THEN
                UPDATE @s@.locks SET waiting_writer = p_owner, used_at = t,
                    waiting_until = @s@.later(t, presence) WHERE name = p_name;
            END IF;
            rest := @s@.micros(others - t);
            RETURN;
        END IF;
        DELETE FROM @s@.waiters w
            WHERE is_queued AND w.name = p_name AND w.owner = p_owner;
        IF is_writer AND waits AND NOT is_queued THEN
            l.waiting_writer := NULL;
        END IF;
    END IF;
    IF reserve IS NOT NULL THEN
        last_token := CASE WHEN is_repeated THEN l.token
            ELSE greatest(l.token + 1, @s@.micros(t - 'epoch')) + reserve END;
        first_token := last_token - reserve;
    END IF;
    UPDATE @s@.locks SET
        owner = p_owner,
        expires_at = CASE WHEN is_repeated THEN greatest(l.expires_at, until) ELSE until END,
        is_writer = shape LIKE '%w%',
        label = CASE WHEN is_repeated THEN coalesce(p_label, l.label) ELSE p_label END,
        label_at = CASE WHEN is_repeated AND p_label IS NULL THEN l.label_at ELSE t END,
        first_token = CASE WHEN is_repeated THEN l.first_token
            ELSE acquire.first_token END,
        token = coalesce(last_token, l.token),
        waiting_writer = l.waiting_writer,
        used_at = t
        WHERE name = p_name;
    outcome := 'granted';
END $$;

-- Locks the row of a name like `lock_row`, but returns nothing if another transaction has it for
-- longer than `patience`; 0: just now.
CREATE FUNCTION @s@.try_row(p_name text, patience bigint) RETURNS @s@.locks LANGUAGE plpgsql AS $$
DECLARE
    l @s@.locks;
BEGIN
    IF patience > 0 THEN
        BEGIN
            RETURN @s@.lock_row(p_name, patience, false);
        EXCEPTION WHEN lock_not_available THEN
            RETURN NULL;
        END;
    END IF;
    SELECT * INTO l FROM @s@.locks WHERE name = p_name FOR NO KEY UPDATE SKIP LOCKED;
    RETURN l;
END $$;

-- Extends leases. Returns for each request, in their order, `extended`, `gone`, or `locked` if
-- another transaction has the row lock for longer than `patience`: then nothing was done.
CREATE FUNCTION @s@.renew(names text[], owners text[], counts integer[], leases bigint[],
    labels text[], label_times bigint[], patience bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    outcomes text[] := '{}';
    l @s@.locks;
    t timestamptz;
    until timestamptz;
    since timestamptz;
BEGIN
    FOR i IN 1 .. cardinality(names) LOOP
        l := @s@.try_row(names[i], patience);
        t := clock_timestamp();
        until := @s@.later(t, leases[i]);
        since := @s@.later('epoch', label_times[i]);
        IF l.name IS NULL THEN
            outcomes := outcomes || CASE WHEN EXISTS
                (SELECT FROM @s@.locks WHERE name = names[i]) THEN 'locked' ELSE 'gone' END;
        ELSIF counts[i] IS NULL THEN
            IF l.owner = owners[i] AND l.expires_at > t THEN
                UPDATE @s@.locks SET expires_at = greatest(expires_at, until),
                    label = coalesce(labels[i], label), label_at = coalesce(since, label_at)
                    WHERE name = names[i];
                outcomes := outcomes || 'extended'::text;
            ELSE
                outcomes := outcomes || 'gone'::text;
            END IF;
        ELSIF (SELECT sum(s.count) FROM @s@.shares s WHERE s.name = names[i]
            AND s.owner = owners[i] AND s.expires_at > t) = counts[i] THEN
            UPDATE @s@.shares s SET expires_at = greatest(s.expires_at, until),
                label = coalesce(labels[i], s.label), label_at = coalesce(since, s.label_at)
                WHERE s.name = names[i] AND s.owner = owners[i];
            UPDATE @s@.locks SET shared_until = greatest(shared_until, until)
                WHERE name = names[i];
            outcomes := outcomes || 'extended'::text;
        ELSE
            outcomes := outcomes || 'gone'::text;
        END IF;
    END LOOP;
    RETURN outcomes;
END $$;

-- Ends an owner's hold, or its wait. Returns whether the owner held the lock. `tombstone` is the
-- time for which the owner is closed; NULL: not at all. With `kept_owner` the lock passes to that
-- owner for `kept`.
CREATE FUNCTION @s@.release(p_name text, p_owner text, shape text, p_count integer,
    last_used bigint, tombstone bigint, kept_owner text, kept bigint, patience bigint)
    RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    is_reader CONSTANT boolean := shape LIKE '%r%';
    is_semaphore CONSTANT boolean := shape LIKE '%p%';
    l @s@.locks := @s@.lock_row(p_name, patience, tombstone IS NOT NULL);
    t CONSTANT timestamptz := clock_timestamp();
    is_held boolean;
    is_holder boolean;
    has_shares boolean;
    lets_in boolean := false;
    had integer;
BEGIN
    IF l.name IS NULL THEN
        RETURN false;
    END IF;
    IF tombstone IS NOT NULL THEN
        INSERT INTO @s@.tombstones AS d VALUES (p_name, p_owner, @s@.later(t, tombstone))
            ON CONFLICT (name, owner)
            DO UPDATE SET ends_at = greatest(d.ends_at, excluded.ends_at);
        DELETE FROM @s@.tombstones d WHERE d.name = p_name AND d.ends_at <= t;
        UPDATE @s@.locks SET closed_until = greatest(closed_until, @s@.later(t, tombstone))
            WHERE name = p_name;
    END IF;
    PERFORM @s@.refuse_other_use(l, is_semaphore, t);
    is_held := coalesce(l.expires_at > t, false);
    is_holder := is_held AND l.owner = p_owner;
    IF l.shared_until IS NOT NULL THEN
        DELETE FROM @s@.shares s WHERE s.name = p_name AND s.expires_at <= t;
    END IF;
    has_shares := l.shared_until > t
        AND EXISTS (SELECT FROM @s@.shares s WHERE s.name = p_name);

    IF shape LIKE '%s%' THEN
        SELECT coalesce(sum(s.count), 0) INTO had FROM @s@.shares s
            WHERE s.name = p_name AND s.owner = p_owner;
        IF had <> p_count AND l.queued_until > t THEN
            lets_in := @s@.give_up(p_name, p_owner, is_reader AND NOT is_held AND NOT has_shares,
                t);
        END IF;
        DELETE FROM @s@.shares s WHERE s.name = p_name AND s.owner = p_owner;
        IF had > 0 THEN
            UPDATE @s@.locks SET used_at = t WHERE name = p_name;
            lets_in := lets_in OR CASE
                WHEN is_reader THEN NOT is_held AND NOT EXISTS
                    (SELECT FROM @s@.shares s WHERE s.name = p_name)
                ELSE coalesce((SELECT sum(s.count) FROM @s@.shares s
                    WHERE s.name = p_name), 0) < coalesce(l.permits, 1) END;
        END IF;
        IF lets_in THEN
            PERFORM @s@.publish(l, t);
        END IF;
        RETURN had = p_count AND had > 0;
    END IF;

    IF NOT is_holder AND l.queued_until > t THEN
        lets_in := @s@.give_up(p_name, p_owner, NOT is_held AND NOT coalesce(has_shares, false),
            t);
    END IF;
    IF shape LIKE '%w%' AND l.waiting_until > t
        AND (is_holder OR l.waiting_writer = p_owner) THEN
        UPDATE @s@.locks SET waiting_writer = NULL WHERE name = p_name;
        lets_in := true;
    END IF;
    IF is_holder THEN
        UPDATE @s@.locks SET owner = kept_owner, expires_at = @s@.later(t, kept), label = NULL,
            token = least(token, last_used), used_at = t
            WHERE name = p_name;
        lets_in := true;
    END IF;
    IF lets_in THEN
        PERFORM @s@.publish(l, t);
    END IF;
    RETURN is_holder OR coalesce(is_held AND l.owner = kept_owner, false);
END $$;

-- Registers a client's interest in the releases of a name, for `span`. Returns the channel.
CREATE FUNCTION @s@.watch(p_name text, span bigint, patience bigint) RETURNS text
    LANGUAGE plpgsql AS $$
DECLARE
    t CONSTANT timestamptz := clock_timestamp();
BEGIN
    IF NOT EXISTS (SELECT FROM @s@.locks l
        WHERE l.name = p_name AND l.watched_until > @s@.later(t, span / 2)) THEN
        PERFORM @s@.lock_row(p_name, patience, true);
        UPDATE @s@.locks l SET watched_until = greatest(l.watched_until, @s@.later(t, span)),
            used_at = t WHERE l.name = p_name;
    END IF;
    RETURN @s@.channel(p_name);
END $$;

-- Registers the interest in these names again. Rows that are locked just now are left out.
CREATE FUNCTION @s@.watch_again(names text[], span bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE @s@.locks l SET watched_until = @s@.later(clock_timestamp(), span)
        WHERE l.name IN (SELECT r.name FROM @s@.locks r WHERE r.name = ANY (names)
            AND coalesce(r.watched_until, '-infinity')
                < @s@.later(clock_timestamp(), span * 3 / 4)
            FOR NO KEY UPDATE SKIP LOCKED) $$;

-- The state of a lock, without row locks: one row for each holder, or one without an owner.
CREATE FUNCTION @s@.inspect(names text[]) RETURNS TABLE (
    at integer, owner text, rest bigint, count integer, is_share boolean, is_writer boolean,
    label text, label_at bigint, token bigint, permits integer, writer_waits boolean,
    waiters bigint)
    LANGUAGE sql STABLE AS $$
    WITH now AS MATERIALIZED (SELECT clock_timestamp() AS t),
    l AS (
        SELECT n.at::integer, l.*, t FROM now, unnest(names) WITH ORDINALITY n (name, at)
            JOIN @s@.locks l ON l.name = n.name),
    h AS (
        SELECT l.at, l.owner, l.expires_at, 1 AS count, false AS is_share, l.label, l.label_at
            FROM l WHERE l.expires_at > t
        UNION ALL
        SELECT l.at, s.owner, s.expires_at, s.count, true, s.label, s.label_at
            FROM l JOIN @s@.shares s ON s.name = l.name
            WHERE l.shared_until > t AND s.expires_at > t)
    SELECT l.at, h.owner, @s@.micros(h.expires_at - t), h.count, h.is_share, l.is_writer, h.label,
        @s@.micros(h.label_at - 'epoch'), l.token, l.permits,
        coalesce(l.waiting_writer IS NOT NULL AND l.waiting_until > t, false)
            OR l.queued_until > t AND EXISTS (SELECT FROM @s@.waiters w
                WHERE w.name = l.name AND w.is_writer AND w.present_until > t),
        -- NULL: some client waits or did so a moment ago, and it is unknown how many do.
        CASE WHEN l.queued_until > t THEN (SELECT count(*) FROM @s@.waiters w
            WHERE w.name = l.name AND w.present_until > t)
            WHEN l.watched_until > t THEN NULL ELSE 0 END
        FROM l LEFT JOIN h USING (at) ORDER BY l.at, h.expires_at DESC $$;

-- The names of held locks that match a regular expression, after `previous`, in their order.
CREATE FUNCTION @s@.held_names(pattern text, previous text, most integer) RETURNS SETOF text
    LANGUAGE sql STABLE AS $$
    SELECT l.name FROM @s@.locks l, (SELECT clock_timestamp() AS t) now
        WHERE l.name > previous COLLATE "C" AND l.permits IS NULL AND l.name ~ pattern
            AND (l.expires_at > t OR l.shared_until > t AND EXISTS (SELECT FROM @s@.shares s
                WHERE s.name = l.name AND s.expires_at > t))
        ORDER BY l.name LIMIT most $$;

-- Ends the hold of whichever owner, or of all readers or permits. Returns whether the lock was
-- held. If it was free, ends the wait of the head of the queue.
CREATE FUNCTION @s@.force_release(p_name text, shape text, patience bigint) RETURNS boolean
    LANGUAGE plpgsql AS $$
DECLARE
    l @s@.locks := @s@.lock_row(p_name, patience, false);
    t CONSTANT timestamptz := clock_timestamp();
    is_free boolean;
    was_held boolean := false;
    ended_wait boolean := false;
    first @s@.waiters;
BEGIN
    IF l.name IS NULL THEN
        RETURN false;
    END IF;
    PERFORM @s@.refuse_other_use(l, shape LIKE '%p%', t);
    is_free := NOT coalesce(l.expires_at > t, false);
    -- While a writer holds the lock, its own reads end with a forced release of the write lock, but
    -- not with a forced release of the read lock.
    IF is_free OR shape NOT LIKE '%r%' THEN
        was_held := EXISTS (SELECT FROM @s@.shares s WHERE s.name = p_name AND s.expires_at > t);
        DELETE FROM @s@.shares s WHERE s.name = p_name;
    END IF;
    first := @s@.head(p_name, NULL, t);
    IF is_free AND NOT was_held AND first.owner IS NOT NULL THEN
        DELETE FROM @s@.waiters w WHERE w.name = p_name AND w.owner = first.owner;
        ended_wait := true;
    ELSIF shape LIKE '%w%' AND l.waiting_until > t AND l.waiting_writer IS NOT NULL THEN
        UPDATE @s@.locks SET waiting_writer = NULL WHERE name = p_name;
        ended_wait := true;
    END IF;
    IF shape NOT LIKE '%s%' AND NOT is_free THEN
        UPDATE @s@.locks SET owner = NULL, expires_at = NULL, label = NULL, used_at = t
            WHERE name = p_name;
        was_held := true;
    END IF;
    IF was_held OR ended_wait THEN
        PERFORM @s@.publish(l, t);
    END IF;
    RETURN was_held;
END $$;

-- Sets the limit of a semaphore, or adds to it. Returns the former limit (NULL: not used yet) and
-- the limit from now on; nothing if the sum is not between 1 and `most`.
CREATE FUNCTION @s@.set_permits(p_name text, p_limit integer, more integer, named integer,
    most integer, patience bigint, OUT was integer, OUT now integer) LANGUAGE plpgsql AS $$
DECLARE
    l @s@.locks := @s@.lock_row(p_name, patience, true);
    t CONSTANT timestamptz := clock_timestamp();
BEGIN
    PERFORM @s@.refuse_other_use(l, true, t);
    was := l.permits;
    now := CASE WHEN p_limit IS NOT NULL THEN p_limit
        WHEN coalesce(l.permits, named)::bigint + more BETWEEN 1 AND most
        THEN coalesce(l.permits, named) + more END;
    IF now IS NULL THEN
        was := coalesce(l.permits, named);
        RETURN;
    END IF;
    UPDATE @s@.locks SET permits = now, used_at = t WHERE name = p_name;
    IF coalesce((SELECT sum(s.count) FROM @s@.shares s
        WHERE s.name = p_name AND s.expires_at > t), 0) < now THEN
        PERFORM @s@.publish(l, t);
    END IF;
END $$;

-- Releases one permit, or extends it if there is a `lease`. Returns whether it was held.
CREATE FUNCTION @s@.change_permit(p_name text, p_identity bytea, number integer, lease bigint,
    patience bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    l @s@.locks := @s@.lock_row(p_name, patience, false);
    t CONSTANT timestamptz := clock_timestamp();
    s @s@.shares;
BEGIN
    IF l.name IS NULL THEN
        RETURN false;
    END IF;
    IF lease IS NULL THEN
        PERFORM @s@.refuse_other_use(l, true, t);
    END IF;
    DELETE FROM @s@.shares h WHERE h.name = p_name AND h.identity = p_identity
        AND h.expires_at > t AND number >= h.first AND number < h.first + h.count
        RETURNING * INTO s;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF number > s.first THEN
        INSERT INTO @s@.shares VALUES (s.name, s.owner, s.first, number - s.first, s.identity,
            s.expires_at, s.label, s.label_at);
    END IF;
    IF number + 1 < s.first + s.count THEN
        INSERT INTO @s@.shares VALUES (s.name, s.owner, number + 1,
            s.first + s.count - number - 1, s.identity, s.expires_at, s.label, s.label_at);
    END IF;
    IF lease IS NOT NULL THEN
        INSERT INTO @s@.shares VALUES (s.name, s.owner, number, 1, s.identity,
            greatest(s.expires_at, @s@.later(t, lease)), s.label, s.label_at);
        UPDATE @s@.locks SET shared_until = greatest(shared_until, @s@.later(t, lease))
            WHERE name = p_name;
    ELSIF coalesce((SELECT sum(h.count) FROM @s@.shares h
        WHERE h.name = p_name AND h.expires_at > t), 0) < l.permits THEN
        PERFORM @s@.publish(l, t);
    END IF;
    RETURN true;
END $$;

-- ShedLock's table `shedlock`, found by the search path, beside ours: the functions with `shed_` in
-- front call the ones of the same name, and keep the row of that table equal. They lock the row
-- there first. ShedLock's times are in UTC, without a time zone.

CREATE FUNCTION @s@.shed_row(p_name text, waits boolean, creates boolean,
    OUT ends_at timestamptz, OUT owner text) LANGUAGE plpgsql AS $$
BEGIN
    IF creates THEN
        INSERT INTO shedlock (name, lock_until, locked_at, locked_by)
            VALUES (p_name, 'epoch', 'epoch', '') ON CONFLICT (name) DO NOTHING;
    END IF;
    IF waits THEN
        SELECT lock_until AT TIME ZONE 'UTC', locked_by INTO ends_at, owner FROM shedlock
            WHERE name = p_name FOR NO KEY UPDATE;
    ELSE
        SELECT lock_until AT TIME ZONE 'UTC', locked_by INTO ends_at, owner FROM shedlock
            WHERE name = p_name FOR NO KEY UPDATE SKIP LOCKED;
    END IF;
END $$;

CREATE FUNCTION @s@.shed_set(p_name text, ends_at timestamptz, p_owner text) RETURNS void
    LANGUAGE plpgsql AS $$
BEGIN
    UPDATE shedlock SET lock_until = ends_at AT TIME ZONE 'UTC', locked_by = p_owner,
        locked_at = CASE WHEN locked_by = p_owner THEN locked_at
            ELSE clock_timestamp() AT TIME ZONE 'UTC' END
        WHERE name = p_name;
END $$;

CREATE FUNCTION @s@.shed_acquire(
    p_name text, p_owner text, shape text, lease bigint, waits boolean, presence bigint,
    beside text, p_limit integer, p_count integer, p_identity bytea, reserve integer, p_label text,
    writers_first boolean, retention bigint, patience bigint,
    OUT outcome text, OUT rest bigint, OUT first_token bigint, OUT last_token bigint,
    OUT permit_limit integer, OUT permit_count integer)
    LANGUAGE plpgsql AS $$
DECLARE
    theirs record;
    t timestamptz;
BEGIN
    PERFORM set_config('lock_timeout', greatest(patience / 1000, 1) || 'ms', true);
    theirs := @s@.shed_row(p_name, true, true);
    t := clock_timestamp();
    IF theirs.ends_at > t AND theirs.owner <> p_owner THEN
        outcome := 'busy';
        rest := @s@.micros(theirs.ends_at - t);
        IF NOT EXISTS (SELECT FROM @s@.locks l
            WHERE l.name = p_name AND l.owner = theirs.owner) THEN
            -- ShedLock publishes no release.
            rest := least(rest, 250000);
        END IF;
        RETURN;
    END IF;
    -- A lock that ShedLock has ended, or that another client of it had meanwhile, is over here, too.
    UPDATE @s@.locks l SET owner = NULL, expires_at = NULL
        WHERE l.name = p_name AND l.owner <> p_owner;
    SELECT * INTO outcome, rest, first_token, last_token, permit_limit, permit_count
        FROM @s@.acquire(p_name, p_owner, shape, lease, waits, presence, beside, p_limit, p_count,
            p_identity, reserve, p_label, writers_first, retention, patience);
    IF outcome = 'granted' THEN
        PERFORM @s@.shed_set(p_name, (SELECT l.expires_at FROM @s@.locks l WHERE l.name = p_name),
            p_owner);
    END IF;
END $$;

CREATE FUNCTION @s@.shed_renew(names text[], owners text[], counts integer[], leases bigint[],
    labels text[], label_times bigint[], patience bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    outcomes text[] := '{}';
    renewed text;
    theirs record;
BEGIN
    FOR i IN 1 .. cardinality(names) LOOP
        theirs := @s@.shed_row(names[i], false, false);
        IF theirs.owner IS NULL THEN
            renewed := CASE WHEN EXISTS (SELECT FROM shedlock WHERE name = names[i])
                THEN 'locked' ELSE 'gone' END;
        ELSIF theirs.owner <> owners[i] OR theirs.ends_at <= clock_timestamp() THEN
            renewed := 'gone';
        ELSE
            renewed := (@s@.renew(names[i : i], owners[i : i], counts[i : i], leases[i : i],
                labels[i : i], label_times[i : i], patience))[1];
        END IF;
        IF renewed = 'extended' THEN
            PERFORM @s@.shed_set(names[i],
                (SELECT l.expires_at FROM @s@.locks l WHERE l.name = names[i]), owners[i]);
        END IF;
        outcomes := outcomes || renewed;
    END LOOP;
    RETURN outcomes;
END $$;

CREATE FUNCTION @s@.shed_release(p_name text, p_owner text, shape text, p_count integer,
    last_used bigint, tombstone bigint, kept_owner text, kept bigint, patience bigint)
    RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    theirs record;
    was_held boolean;
BEGIN
    PERFORM set_config('lock_timeout', greatest(patience / 1000, 1) || 'ms', true);
    theirs := @s@.shed_row(p_name, true, false);
    was_held := @s@.release(p_name, p_owner, shape, p_count, last_used, tombstone, kept_owner,
        kept, patience);
    IF was_held AND theirs.owner = p_owner AND theirs.ends_at > clock_timestamp() THEN
        PERFORM @s@.shed_set(p_name, coalesce(@s@.later(clock_timestamp(), kept),
            clock_timestamp()), coalesce(kept_owner, p_owner));
    END IF;
    RETURN coalesce(was_held AND theirs.ends_at > clock_timestamp()
        AND (theirs.owner = p_owner OR theirs.owner = kept_owner), false);
END $$;

CREATE FUNCTION @s@.shed_force_release(p_name text, shape text, patience bigint) RETURNS boolean
    LANGUAGE plpgsql AS $$
DECLARE
    theirs record;
BEGIN
    PERFORM set_config('lock_timeout', greatest(patience / 1000, 1) || 'ms', true);
    theirs := @s@.shed_row(p_name, true, false);
    PERFORM @s@.force_release(p_name, shape, patience);
    IF theirs.ends_at > clock_timestamp() THEN
        PERFORM @s@.shed_set(p_name, clock_timestamp(), theirs.owner);
        RETURN true;
    END IF;
    RETURN false;
END $$;

CREATE FUNCTION @s@.shed_inspect(names text[]) RETURNS TABLE (
    at integer, owner text, rest bigint, count integer, is_share boolean, is_writer boolean,
    label text, label_at bigint, token bigint, permits integer, writer_waits boolean,
    waiters bigint)
    LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT n.at::integer, h.locked_by::text, @s@.micros(h.rest), 1, false, false,
        CASE WHEN l.owner = h.locked_by THEN l.label END,
        CASE WHEN l.owner = h.locked_by THEN @s@.micros(l.label_at - 'epoch') ELSE 0 END,
        l.token, NULL::integer, false, NULL::bigint
        FROM unnest(names) WITH ORDINALITY n (name, at)
        LEFT JOIN @s@.locks l ON l.name = n.name
        LEFT JOIN LATERAL (SELECT s.locked_by,
                s.lock_until AT TIME ZONE 'UTC' - clock_timestamp() AS rest
            FROM shedlock s WHERE s.name = n.name
                AND s.lock_until AT TIME ZONE 'UTC' > clock_timestamp()) h ON true
        WHERE h.locked_by IS NOT NULL OR l.name IS NOT NULL;
END $$;

CREATE FUNCTION @s@.shed_held_names(pattern text, previous text, most integer) RETURNS SETOF text
    LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT s.name::text FROM shedlock s WHERE s.name > previous COLLATE "C" AND s.name ~ pattern
        AND s.lock_until AT TIME ZONE 'UTC' > clock_timestamp()
        ORDER BY s.name COLLATE "C" LIMIT most;
END $$;

COMMENT ON TABLE @s@.locks IS 'distlock @v@';
