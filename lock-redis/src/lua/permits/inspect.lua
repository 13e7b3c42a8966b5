-- inspect_permits: how many permits there are and how many are free, and who has them.
--
-- KEYS[1] the semaphore
-- KEYS[2] the permits that are taken
-- ARGV[1] owner: the first 13 bytes of its permits; left out for all owners
-- ARGV[2] how many
--
-- Returns {limit, free, taken, id, left}: limit and free are empty texts if no client has used the
-- semaphore yet; the permit that expires last, if one is taken, and in how many milliseconds (-1:
-- never). With an owner: {left} until the first of its permits expires, nothing if it does not have
-- all of them.
--
-- Atomic because all of it must be of one moment. Changes nothing.

local free, taken = counted(KEYS[1], KEYS[2])
if type(free) == 'table' then
  return free
end
-- No permit is called that; but a replica, which may have old ones or none yet, refuses.
redis.call('ZREM', KEYS[2], '')
local function left(expiry)
  return expiry >= NEVER and -1 or expiry - now
end
if ARGV[1] then
  local first = NEVER
  for _, expiry in ipairs(redis.call('ZMSCORE', KEYS[2], unpack(ids(ARGV[1], ARGV[2])))) do
    first = math.min(first, tonumber(expiry or 0))
  end
  return first > now and {left(first)} or {}
end
local over = redis.call('ZCOUNT', KEYS[2], '-inf', now)
local answer = {free and free + taken or '', free and free + over or '', taken - over}
if taken > over then
  local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
  answer[4], answer[5] = last[1], left(tonumber(last[2]))
end
return answer
