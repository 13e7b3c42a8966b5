-- free: how every script ends that frees a lock: whoever waits for it is told, and it is gone. The files beside this one do
-- the same for waiters of other libraries, too, and are their formats' in its place.
--
-- First, so that a user who may not publish is refused before anything is written. Nobody can act on the message
-- before the script ends.
local told = redis.call(publish, channel, '0')
redis.call('DEL', KEYS[1])
return 1 + told
