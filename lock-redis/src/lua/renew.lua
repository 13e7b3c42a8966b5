-- renew: extends the leases of many locks, each for its own owner.
--
-- KEYS[i]     the lock
-- ARGV[2i-1]  lease in milliseconds
-- ARGV[2i]    owner
--
-- Returns 1 if all were extended; otherwise for each key 1 extended, 0 not this owner's, or the
-- text of the error that this key alone made.
--
-- Atomic because between the look and the PEXPIRE the lock may pass to another owner, whose lease
-- is not ours to set. Never shortens a lease and never makes a key.

local function renew(key, lease, owner)
  local ours = look(redis.pcall, key, owner)
  if type(ours) == 'table' then
    return ours.err
  end
  if ours == 0 then
    local sure = gone(redis.pcall, key, owner)
    return type(sure) == 'table' and sure.err or 0
  end
  local pttl = redis.pcall('PTTL', key)
  if type(pttl) == 'table' then
    return pttl.err
  end
  -- A key that lost its expiry (-1) gets one again. Written also where nothing changes: since 7.2
  -- WAIT looks only at what its own connection wrote, and without a write says that all replicas
  -- have it.
  local done = redis.pcall('PEXPIRE', key, math.max(pttl, tonumber(lease)))
  if type(done) == 'table' then
    return done.err
  end
  return 1
end

local answers, extended = {}, 0
for i = 1, #KEYS do
  answers[i] = renew(KEYS[i], ARGV[2 * i - 1], ARGV[2 * i])
  if answers[i] == 1 then
    extended = extended + 1
  end
end
-- The rule, in one answer: neither the server nor the client goes through a hundred.
if extended == #KEYS then
  return 1
end
return answers
