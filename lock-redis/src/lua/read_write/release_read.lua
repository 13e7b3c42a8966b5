-- release_read: ends a reader's hold, or its wait; frees the lock and tells its waiters if it was
-- the last.
--
-- KEYS[1] the lock
-- KEYS[2] the hold
-- KEYS[3] the tombstone of this owner; left out: none
-- ARGV[1] owner
-- ARGV[2] channel
-- ARGV[3] the command that publishes
-- ARGV[4] how long the tombstone stays, in milliseconds
--
-- Returns 0 it was not this owner's; ended: 1 more than clients were told, or {1, why none was}.
--
-- Atomic because a reader that comes between the look at the others and the DEL would lose its
-- hold.

if KEYS[3] then
  -- A full server refuses what takes memory as a script's first write, and behind a write that
  -- takes none it does not.
  redis.call('DEL', KEYS[3])
  redis.call('SET', KEYS[3], '1', 'PX', ARGV[4])
end
local is_alive = redis.call('DEL', KEYS[2]) == 1
-- A replica refuses it: what that lacks, its master may have.
local was_in = redis.call('HDEL', KEYS[1], ARGV[1]) == 1
if not (is_alive and was_in) then
  -- One whose lease ended may wait once more.
  pcall(give_up, KEYS[1], ARGV[1], ARGV[3], 'free')
end
if not was_in then
  return 0
end
local told = settle(KEYS[1], ARGV[2], ARGV[3])
return is_alive and told or 0
