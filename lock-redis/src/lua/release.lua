-- release: frees the lock if this owner has it, and lets the next waiter in.
--
-- KEYS[1] the lock
-- ARGV[1] owner
-- ARGV[2] channel
-- ARGV[3] the command that publishes
-- ARGV[4] `turns` of let_next_in.lua; left out where the holder's own attempt got the lock. "stay"
-- where another thread of the owner's client waits in its place, "none" where there are no queues
--
-- Returns 0 it was not this owner's, and waits no longer; freed: what tell.lua returns.
--
-- Atomic because between the look and the end the lease may end and another owner come in, and a
-- waiter must not miss that the lock is free. The lock is the only key declared, so that on a
-- cluster a release goes on while the slot is moved.

local lock, channel, publish, turns = KEYS[1], ARGV[2], ARGV[3], ARGV[4]
local freed, told = drop(redis.call, lock, ARGV[1]), nil
-- Where a release granted the lock, others wait most likely: see pass_on.
if freed == 1 and not (turns and string.find(turns, ':', 1, true)) then
  -- No client can act on it before the script ends.
  told = tell(publish, channel, '0')
  if turns == 'none' or redis.pcall('EXISTS', queue_of(lock)) ~= 1 then
    return told
  end
end
-- Mostly no client waits, and each function that is made costs the server.
