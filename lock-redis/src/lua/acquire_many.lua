-- acquire_many: acquire.lua for several locks, with tokens, each for an owner of its own.
--
-- KEYS[1] the first lock; behind the n locks their n tombstones, in the same order, behind those
-- their n queues, as KEYS[4] of acquire.lua, and behind those their n counters
-- ARGV[1] lease in milliseconds, of all
-- ARGV[2] how long the counters are kept, as ARGV[3] of acquire.lua
-- ARGV[3] the first owner; there are n
--
-- Returns for each lock what acquire.lua returns; an error among these stands for a request that is
-- to be sent again alone, of which nothing was carried out. No other error once a lock is granted:
-- then it would not be known which.
--
-- Atomic because each grant must be, as in acquire.lua. That all of them are at once is of no use,
-- but one look at all keys is cheaper, and one reading of the time.

local n = #KEYS / 4
local answers, taken, others = {}, {}, {}

-- By another name: the library takes the first argument of every "call" for a command.
local try = pcall

local function answer(i, run, ...)
  local done, reply = try(run, ...)
  if not done then
    -- Before Redis 7 an error is a text.
    reply = {err = type(reply) == 'table' and reply.err or tostring(reply)}
  end
  answers[i] = reply
end

local all_free = redis.call('EXISTS', unpack(KEYS, 1, 3 * n)) == 0
for i = 1, n do
  local lock, tombstone, queue = KEYS[i], KEYS[n + i], KEYS[2 * n + i]
  -- The same lock may come twice: then the second attempt must see the first one's grant.
  if not taken[lock] and (all_free or redis.call('EXISTS', tombstone, lock, queue) == 0) then
    answer(i, grant, lock, KEYS[3 * n + i], false, ARGV[1], ARGV[2 + i], ARGV[2])
    taken[lock] = type(answers[i]) ~= 'table'
  else
    others[#others + 1] = i
  end
end
if #others == 0 then
  return answers
end
