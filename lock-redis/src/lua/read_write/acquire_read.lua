-- acquire_read: takes the lock for a reader, if no writer has it or goes before this one; otherwise
-- a caller that waits enters the queue, or stays in it.
--
-- KEYS[1] the lock
-- KEYS[2] the hold           present for as long as the reader's own lease
-- KEYS[3] the tombstone      present while this owner is closed
-- KEYS[4] the counter        string, the largest token handed out or set aside
-- KEYS[5] the queue          see queue.lua; left out: no waiter goes before this reader
-- ARGV[1] lease in milliseconds
-- ARGV[2] owner
-- ARGV[3] the writer beside which this one may read, as it stands in the lock; "" for none
-- ARGV[4] the command that publishes
-- ARGV[5] which waiters go before it: "all"; "free", all if no reader has the lock, and else none;
--         "writers", none if no reader has it, and else one that is not a reader
-- ARGV[6] how the caller waits, as ARGV[5] of acquire.lua
--
-- Returns the last token as a text, or 1 granted and there is none; {0, pttl} another owner has it
-- or goes before this one (-1: for ever), or this one is closed (-2).
--
-- Atomic because a reader and a writer must never both find the lock free, and a late copy of a
-- request must see the tombstone before it takes the lock or enters the queue.

local queue, publish, wait = KEYS[5], ARGV[4], ARGV[6]

-- A mutex's waiter has numbers, and a writer's name this end.
local function is_reader(attempt)
  return attempt == 'r'
end

-- For how long others hold the lock or go before this reader; nothing if it is its turn, and then
-- it waits no longer.
local function before_us(mode)
  local which = ARGV[5]
  if not queue or not mode and which == 'writers' then
    return nil
  end
  if not mode then
    return others_before(KEYS[1], queue, ARGV[2], wait)
  end
  local name, left, _, attempt
  if which ~= 'free' then
    name, left, _, attempt = first_present(queue, ARGV[2])
  end
  local is_after = name and name ~= ARGV[2]
  if is_after and not (which == 'writers' and is_reader(attempt)) then
    return left
  end
  if wait then
    leave(queue, ARGV[2])
  end
  return nil
end

-- Readers that are next come in one after the other.
local function tell_next_reader()
  local name, _, owner, attempt = first_present(queue)
  if name and is_reader(attempt) then
    tell_owner(publish, queue, owner, owner)
  end
end

if redis.call('EXISTS', KEYS[3]) == 1 then
  return {0, -2}
end
local mode = redis.call('HGET', KEYS[1], 'mode')
local left = redis.call('PTTL', KEYS[2])
-- The answer to the first copy of this request was lost.
local ours = left ~= -2 and redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1
if not ours then
  local is_free, may_wait = mode == 'read', true
  if not mode then
    -- Mostly neither is there.
    may_wait = redis.call('EXISTS', KEYS[1], queue or KEYS[1]) > 0
    is_free = not may_wait or redis.call('EXISTS', KEYS[1]) == 0
  end
  local is_beside = mode == 'write' and ARGV[3] ~= ''
    and redis.call('HEXISTS', KEYS[1], ARGV[3]) == 1
  local others = is_free and may_wait and before_us(mode)
  queue = may_wait and queue
  if others or not (is_free or is_beside) then
    if wait then
      -- Where the user may not write the queue, or the memory is full, it waits without a place.
      pcall(enter, queue, nil, wait, ARGV[2])
    end
    return {0, others or redis.call('PTTL', KEYS[1])}
  end
  if is_beside and queue then
    leave(queue, ARGV[2])
  end
end
local token = redis.call('GET', KEYS[4])
-- Never shorter: a renewal of a longer lease may have come in between. Before the lock, because of
-- several writes in a script only the first is refused when the memory is full.
local lease = math.max(ours and left or 0, tonumber(ARGV[1]))
redis.call('SET', KEYS[2], '1', 'PX', lease)
if mode then
  -- In a slot that is moving here the script is not run: there is no tombstone.
  sweep(KEYS[1], ARGV[2], 2, KEYS[2])
  redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), lease))
  redis.call('HSET', KEYS[1], ARGV[2], '1')
else
  redis.call('HSET', KEYS[1], 'mode', 'read')
  local refused = take(KEYS[1], ARGV[2], lease)
  if refused then
    return refused
  end
end
if not ours and mode ~= 'write' and queue then
  pcall(tell_next_reader)
end
return token and string.find(token, '^%d+$') and token or 1
