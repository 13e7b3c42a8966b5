-- acquire_read: takes the lock for a reader, if no writer has it or goes before this one.
--
-- KEYS[1] the lock
-- KEYS[2] the hold           present for as long as the reader's own lease
-- KEYS[3] the tombstone      present while this owner is closed
-- KEYS[4] the counter        string, the largest token handed out or set aside
-- KEYS[5] the waiting writer present while one waits; left out: readers do not care. Of a fair lock
--         the queue
-- ARGV[1] lease in milliseconds
-- ARGV[2] owner
-- ARGV[3] the writer beside which this one may read, as it stands in the lock; "" for none. Behind
-- it what a fair lock needs
--
-- Returns the last token as a text, or 1 granted and there is none; {0, pttl} another owner has it
-- or goes before this one (-1: for ever), or this one is closed (-2).
--
-- Atomic because a reader and a writer must never both find the lock free, and a late copy of a
-- request must see the tombstone before it takes the lock.

if redis.call('EXISTS', KEYS[3]) == 1 then
  return {0, -2}
end
local mode = redis.call('HGET', KEYS[1], 'mode')
local left = redis.call('PTTL', KEYS[2])
-- The answer to the first copy of this request was lost.
local ours = left ~= -2 and redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1
if not ours then
  local is_free = mode == 'read' or not mode and redis.call('EXISTS', KEYS[1]) == 0
  local is_beside = mode == 'write' and ARGV[3] ~= ''
    and redis.call('HEXISTS', KEYS[1], ARGV[3]) == 1
  local others = not is_beside and before_us(is_free)
  if others or not (is_free or is_beside) then
    return {0, is_free and others or redis.call('PTTL', KEYS[1])}
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
if not ours then
  let_next_in(mode)
end
return token and string.find(token, '^%d+$') and token or 1
