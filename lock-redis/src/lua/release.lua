-- release: frees the lock if this owner has it, and lets the next waiter in.
--
-- KEYS[1] the lock; behind it what the ending needs, and `gone`: by default nothing
-- ARGV[1] owner
-- ARGV[2] channel
-- ARGV[3] the command that publishes
-- ARGV[4] `turns` of queue.lua; left out where the holder's own attempt got the lock. "stay" where
-- another thread of the owner's client waits in its place
--
-- Returns 0 it was not this owner's, and waits no longer; 1 freed, or {1, why no client could be
-- told}.
--
-- Atomic because between the look and the end the lease may end and another owner come in, and a
-- waiter must not miss that the lock is free. By default the lock is the only key declared, so that
-- on a cluster a release goes on while the slot is moved.

local channel, publish, turns = ARGV[2], ARGV[3], ARGV[4]
if free(KEYS[1], ARGV[1]) == 0 then
  if turns ~= 'stay' then
    pcall(give_up, KEYS[1], ARGV[1], publish, turns)
  end
  return gone(redis.call, KEYS[1], ARGV[1])
end
