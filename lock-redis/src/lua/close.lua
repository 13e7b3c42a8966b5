-- close: a release that also turns down whatever still arrives from this owner, gives unused tokens
-- back, or passes the lock to an owner that no client is.
--
-- KEYS[1] the lock
-- KEYS[2] the token counter
-- KEYS[3] the tombstone of this owner; behind it what the ending needs, and `gone`: by default
-- nothing
-- ARGV[1] owner
-- ARGV[2] channel
-- ARGV[3] the command that publishes
-- ARGV[4] the last token used, or "" to leave the counter alone
-- ARGV[5] the last token that was set aside
-- ARGV[6] how long the tombstone stays, in milliseconds; "0" for none
-- ARGV[7] left out, or "", to free the lock; or the owner that it passes to
-- ARGV[8] for how long, in milliseconds
-- ARGV[9] as ARGV[4] of release.lua
--
-- Returns what release.lua returns.
--
-- Atomic because an acquire of this owner that came between the tombstone and the release would
-- hold the lock without a holder, and the counter may only go back while the lock is ours:
-- afterwards it is another owner's token. Nor if it is not where our grant left it: the locks `a`
-- and `{a}` share one, and Redisson's RFencedLock moves it by itself.

if ARGV[6] ~= '0' then
  -- A full server refuses what takes memory as a script's first write, and behind a write that
  -- takes none it does not.
  redis.call('DEL', KEYS[3])
  redis.call('SET', KEYS[3], '1', 'PX', ARGV[6])
end
local channel, publish, turns = ARGV[2], ARGV[3], ARGV[9]
local next_owner = ARGV[7] ~= '' and ARGV[7]
if look(redis.call, KEYS[1], ARGV[1]) == 0 then
  pcall(give_up, KEYS[1], ARGV[1], publish, turns)
  local answer = gone(redis.call, KEYS[1], ARGV[1])
  if next_owner and look(redis.call, KEYS[1], next_owner) == 1 then
    -- The answer to the first copy of this request was lost.
    return 1
  end
  return answer
end
if ARGV[4] ~= '' then
  if redis.call('GET', KEYS[2]) == ARGV[5] then
    -- On a full server the counter stays ahead, which is no reason to keep the lock.
    redis.pcall('SET', KEYS[2], ARGV[4], 'KEEPTTL')
  end
end
if next_owner then
  local refused = pass(KEYS[1], ARGV[1], next_owner, ARGV[8])
  if refused then
    return refused
  end
  -- Its waiters learn of the new end.
  return tell_all(KEYS[1], publish, channel)
end
free(KEYS[1], ARGV[1])
