-- renew_read: extends the lease of a reader's hold.
--
-- KEYS[1] the lock
-- KEYS[2] the hold
-- ARGV[1] lease in milliseconds
-- ARGV[2] owner
-- ARGV[3] channel
-- ARGV[4] the command that publishes
--
-- Returns 1 extended, 0 it is over.
--
-- Atomic because between the look and the PEXPIRE the lock may pass to a writer, whose lease is not
-- ours to set. Never shortens a lease and never makes a key.

local left = redis.call('PTTL', KEYS[2])
if left == -2 or redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then
  -- A replica refuses it: what that lacks, its master may have.
  if redis.call('HDEL', KEYS[1], ARGV[2]) == 1 then
    settle(KEYS[1], ARGV[3], ARGV[4])
  end
  return 0
end
-- Written also where nothing changes: since 7.2 WAIT looks only at what its own connection wrote.
local lease = tonumber(ARGV[1])
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), lease))
redis.call('PEXPIRE', KEYS[2], math.max(left, lease))
return 1
