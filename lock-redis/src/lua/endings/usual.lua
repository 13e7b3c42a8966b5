-- free: how every script ends that frees a lock: its waiters are told, and it is gone. The files
-- beside this one do the same for waiters of other libraries, too, and are their formats' in its
-- place.
--
-- Told first: no client can act on the message before the script ends. Where it cannot be
-- published, the waiters find out by themselves, and the lock is freed all the same: {freed, the
-- error}.
local told = redis.pcall(publish, channel, '0')
redis.call('DEL', KEYS[1])
if type(told) == 'table' then
  return {1, told.err}
end
return 1 + told
