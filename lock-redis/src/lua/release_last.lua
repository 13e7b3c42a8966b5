-- release: release.lua for a format whose releases wake the waiters of another library. All waiters
-- compete, ours too.
--
-- KEYS[1] the lock; behind it what the ending needs
-- ARGV[1] owner
-- ARGV[2] channel
-- ARGV[3] the command that publishes
--
-- Returns what release.lua returns.
--
-- Atomic because between the look and the end the lease may end and another owner come in.

local channel, publish = ARGV[2], ARGV[3]
if look(redis.call, KEYS[1], ARGV[1]) == 0 then
  return gone(redis.call, KEYS[1], ARGV[1])
end
