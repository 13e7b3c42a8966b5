-- acquire_many: acquire.lua for several locks, with tokens, each for an owner of its own.
--
-- KEYS[1] the first lock; behind the n locks their n tombstones, in the same order, and behind
-- those their n counters
-- ARGV[1] lease in milliseconds, of all
-- ARGV[2] how long the counters are kept, as ARGV[3] of acquire.lua
-- ARGV[3] the first owner; there are n
--
-- Returns for each lock what acquire.lua returns. An error instead, or among these, stands for a
-- request that is to be repeated alone: what it has granted before is granted again.
--
-- Atomic because each grant must be, as in acquire.lua. That all of them are at once is of no use,
-- but one look at all keys is cheaper, and one reading of the time.

local n = #KEYS / 3
local all_free = redis.call('EXISTS', unpack(KEYS, 1, 2 * n)) == 0
local taken, answers = {}, {}
for i = 1, n do
  local lock, tombstone, counter, owner = KEYS[i], KEYS[n + i], KEYS[2 * n + i], ARGV[2 + i]
  -- Nothing may say that no lock comes twice.
  if all_free and not taken[lock] then
    answers[i] = grant(lock, counter, false, ARGV[1], owner, ARGV[2])
  else
    answers[i] = attempt(lock, counter, tombstone, ARGV[1], owner, ARGV[2])
  end
  taken[lock] = true
end
return answers
