-- free, with `wakes=spring-integration`: the channel is that of Spring's registry, for its waiters
-- and ours, and the message is the lock's key, by which a registry finds who waits.
local told = tell(publish, channel, KEYS[1])
redis.call('DEL', KEYS[1])
return told
