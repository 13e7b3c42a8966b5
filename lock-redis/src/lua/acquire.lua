-- acquire: takes the lock for an owner if it is free and no other waiter is next, and makes its
-- fencing tokens; otherwise a caller that waits enters the queue, or stays in it.
--
-- KEYS[1] the lock
-- KEYS[2] the counter     string, the largest token handed out or set aside
-- KEYS[3] the tombstone   present while this owner is closed
-- KEYS[4] the queue       see queue.lua. For a caller that takes a free lock whoever waits: the
--         lock once more
-- ARGV[1] lease in milliseconds
-- ARGV[2] owner
-- ARGV[3] how long, in milliseconds, the counter is kept after the time it stands for, up to 100 s
-- less; "0" for ever; left out, or "": no tokens
-- ARGV[4] how many tokens to set aside behind the first; left out, or "": none
-- ARGV[5] how the caller waits, or left out: the waiter's name in the queue, the number of this
-- attempt ("-": it is only told that it is next), for how long in milliseconds it counts as
-- present, the lease in milliseconds of a grant by a release, and the command that publishes such a
-- grant ("-" where releases grant nothing)
--
-- Returns the first token as a text, or 1 granted without tokens; {0, pttl, told, first} another
-- owner has it or is next (-1: for ever), or this one is closed (-2), and its release will be told
-- of (1) or not (0); first is 1 if this waiter is the first one, or does not wait, and 2 if the
-- user may not use the queue.
--
-- Atomic because two owners must never both find the lock free, a token must belong to exactly one
-- grant, and a late copy of a request must see the tombstone before it takes the lock or enters the
-- queue.

local keep, reserve = ARGV[3], ARGV[4]
if keep == '' then
  keep = nil
end
if reserve == '' then
  reserve = nil
end
-- Every call here is paid for by the one thread that serves all clients; so is every argument,
-- every number that becomes a text, and every function that is made. One look for all: mostly none
-- is there.
local found = redis.call('EXISTS', KEYS[3], KEYS[3], KEYS[1], KEYS[4])
if found == 0 then
  return grant(KEYS[1], KEYS[2], false, ARGV[1], ARGV[2], keep, reserve)
end
