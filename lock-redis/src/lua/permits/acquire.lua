-- acquire_permits: takes permits of a semaphore for an owner if so many are free and no other
-- waiter is next; otherwise a caller that waits enters the queue, or stays in it.
--
-- KEYS[1] the semaphore   string, how many permits are free; never expires
-- KEYS[2] the permits     sorted set, each that is taken with the time of its expiry in
--         milliseconds
-- KEYS[3] the tombstone   present while this owner is closed
-- KEYS[4] the queue       see queue.lua; left out for a caller that takes what is free
-- ARGV[1] owner: the first 13 bytes of its permits
-- ARGV[2] how many
-- ARGV[3] lease in milliseconds
-- ARGV[4] how many there are, for the first client that uses the semaphore
-- ARGV[5] channel
-- ARGV[6] the command that publishes
-- ARGV[7] the owner as a text
-- ARGV[8] how the caller waits, as ARGV[5] of acquire.lua
--
-- Returns {1, limit, how many} granted; {0, left, first} too few are free, and in so many
-- milliseconds the first that is taken expires (-1: never, -2: none is taken), or this owner is
-- closed (-2); first is 0 if others wait before the caller, or it waits without a place.
--
-- Atomic because two owners must never both take the last permit, one that has expired must be free
-- for one of them only, and a late copy of a request must see the tombstone before it takes any or
-- enters the queue.

-- As many that have expired are freed at a time.
local MOST = 1000

local free, taken = counted(KEYS[1], KEYS[2])
if type(free) == 'table' then
  return free
end
if redis.call('EXISTS', KEYS[3]) == 1 then
  return {0, -2}
end
local over = math.min(redis.call('ZCOUNT', KEYS[2], '-inf', now), MOST)
if over > 0 then
  redis.call('ZREMRANGEBYRANK', KEYS[2], 0, over - 1)
  taken = taken - over
  free = free and redis.call('INCRBY', KEYS[1], over)
end
if not free then
  free = ARGV[4] - taken
  if not redis.call('SET', KEYS[1], free, 'NX') then
    return redis.error_reply('WRONGTYPE the number of permits is an empty text')
  end
end

local all, missing = ids(ARGV[1], ARGV[2]), 0
-- Of a repeated request all are there, unless an operator or the end of the lease took some: those
-- are asked for again.
local expiries = redis.call('ZMSCORE', KEYS[2], unpack(all))
for i = 1, #all do
  missing = missing + (expiries[i] and 0 or 1)
end
local queue, wait = KEYS[4], ARGV[8]
local waiter = wait and string.match(wait, '^%S+')
local first, others
if queue and missing > 0 then
  first, others = first_present(queue, waiter or ARGV[7])
end
if others or (missing > 0 and missing > free) then
  local is_first = 1
  if waiter and #all > free + taken then
    -- It would keep all others out until the limit rises.
    if leave(queue, waiter) then
      tell_next(queue, ARGV[6])
    end
    is_first = 0
  elseif waiter then
    -- Where the user may not write the queue, or the memory is full, it waits without a place.
    local is_done, answer = pcall(enter, queue, nil, wait, ARGV[7])
    is_first = is_done and answer or 1
  end
  if over > 0 then
    offer(ARGV[6], ARGV[5], free) -- enough for others, perhaps
  end
  local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]
  local left = first and math.max(0, tonumber(first) - now) or -2
  return {0, others or first and tonumber(first) >= NEVER and -1 or left, is_first}
end

-- Written also where none is missing: since 7.2 WAIT looks only at what its own connection wrote,
-- and without a write says that all replicas have it.
free = redis.call('INCRBY', KEYS[1], 0 - missing) -- and not "-0"
local words, expiry = {}, string.format('%.0f', now + ARGV[3])
for i = 1, #all do
  words[2 * i - 1], words[2 * i] = expiry, all[i]
end
local added = redis.pcall('ZADD', KEYS[2], 'GT', unpack(words))
if type(added) == 'table' then
  -- A user who may not ZADD would take permits that never expire.
  redis.call('INCRBY', KEYS[1], missing)
  return added
end
if over > 0 then
  offer(ARGV[6], ARGV[5], free)
end
if queue and missing > 0 then
  if waiter then
    leave(queue, waiter)
  end
  if first and free > 0 then
    tell_next(queue, ARGV[6]) -- what is left may be enough for it
  end
end
return {1, free + taken + missing, #all}
