-- free: how scripts end that free a lock: the waiters of other libraries are told, and the next of
-- ours is let in. The files beside this one do the same for waiters that other libraries wake in
-- other ways, and are their formats' in its place.
local told = tell(publish, channel, '0')
if turns ~= 'none' and redis.pcall('EXISTS', queue_of(KEYS[1])) == 1 then
  return let_next_in(KEYS[1], publish, told, turns)
end
return told
