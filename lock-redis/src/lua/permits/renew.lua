-- renew_permits: extends the lease of an owner's permits.
--
-- KEYS[1] the permits that are taken
-- ARGV[1] owner: the first 13 bytes of its permits
-- ARGV[2] how many
-- ARGV[3] lease in milliseconds
--
-- Returns 1, or 0 if one of them is not this owner's any more, or has expired.
--
-- Atomic because between the look and the ZADD a permit may be removed, which would be taken again
-- without being counted. Never shortens a lease and never adds a permit.

-- A write that changes nothing. A full server refuses what takes memory as a script's first write;
-- and a replica refuses it, which may lack what its master has.
redis.call('ZREM', KEYS[1], '')
local all, words, later = ids(ARGV[1], ARGV[2]), {}, string.format('%.0f', now + ARGV[3])
local expiries = redis.call('ZMSCORE', KEYS[1], unpack(all))
-- Mostly none has, of any owner, and no text need become a number.
local are_expired = redis.call('ZCOUNT', KEYS[1], '-inf', now) > 0
for i = 1, #all do
  if not expiries[i] or are_expired and tonumber(expiries[i]) <= now then
    return 0
  end
  words[2 * i - 1], words[2 * i] = later, all[i]
end
if redis.call('ZADD', KEYS[1], 'XX', 'GT', 'CH', unpack(words)) < #all then
  -- Later by a millisecond at least: since 7.2 WAIT looks only at what its own connection wrote,
  -- and without a write says that all replicas have it.
  for i = 1, #all do
    words[2 * i - 1] = math.max(math.min(tonumber(expiries[i]) + 1, NEVER), now + ARGV[3])
  end
  redis.call('ZADD', KEYS[1], 'XX', unpack(words))
end
return 1
