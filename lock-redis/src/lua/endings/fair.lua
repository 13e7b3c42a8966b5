-- free, for a fair lock: as ever, and then the owner that is next is granted it, or told.
--
-- KEYS[2] the counter     see acquire.lua of the mutex
-- KEYS[#KEYS] the queue   see queue.lua

-- Grants the lock to the owner that is next, if it may be granted so. That owner knows when it sent
-- the attempt of this number, before now, and so until when it has the lock at least, however late
-- the message comes.
local function grant_next()
  local owner, _, attempt, presence = first(clock())
  if not owner or owner == '' then
    return true
  end
  if not attempt then
    return false
  end
  local is_done, token = pcall(grant, KEYS[1], KEYS[2], false, presence, owner, '')
  if not is_done or type(token) == 'table' then
    return false
  end
  leave(owner)
  local granted = string.sub(attempt, 2) .. ' ' .. token .. ' ' .. KEYS[1]
  tell_owner(publish, owner, owner .. ' ' .. granted)
  return true
end

local told = tell(publish, channel, '0')
redis.call('DEL', KEYS[1])
-- Others that were told of the release, which are not in the queue, get a chance. The lock is free,
-- also if there is other data under the queue's key.
local is_done, is_granted
if told == 1 then
  is_done, is_granted = pcall(grant_next)
end
if not (is_done and is_granted) then
  pcall(tell_next, publish)
end
return told
