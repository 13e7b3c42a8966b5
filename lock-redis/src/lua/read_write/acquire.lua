-- acquire: takes the lock for an owner if it is free, and makes its fencing tokens.
--
-- KEYS[1] the lock
-- KEYS[2] the counter     string, the largest token handed out or set aside
-- KEYS[3] the tombstone   present while this owner is closed
-- ARGV[1] lease in milliseconds
-- ARGV[2] owner
-- ARGV[3] how long, in milliseconds, the counter is kept after the time it stands for, up to 100 s
-- less; "0" for ever; left out: no tokens
-- ARGV[4] how many tokens to set aside behind the first; left out: none
--
-- Returns the first token as a text, or 1 granted without tokens; {0, pttl, told} another owner has
-- it (-1: for ever), or this one is closed (-2), and its release will be told of (1) or not (0).
--
-- Atomic because two owners must never both find the lock free, a token must belong to exactly one
-- grant, and a late copy of a request must see the tombstone before it takes the lock.

return attempt(KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3], ARGV[4])
