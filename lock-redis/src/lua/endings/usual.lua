-- free: how every script ends that frees a lock: its waiters are told, and it is gone. The files
-- beside this one do the same for waiters of other libraries, too, and are their formats' in its
-- place.
--
-- Told first, so that the message comes before the server's report of the DEL. No client can act on
-- it before the script ends.
local told = tell(publish, channel, '0')
redis.call('DEL', KEYS[1])
return told
