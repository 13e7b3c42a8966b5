-- free, with `wakes=spring-integration`: the channel is that of Spring's registry, for its waiters
-- and ours, and the message is the lock's key, by which a registry finds who waits.
local told = tell(publish, channel, KEYS[1])
redis.call('DEL', KEYS[1])
if type(told) == 'table' then
  return told
end
-- A registry that ever waited listens by a pattern, to the end of its program, and hears of every
-- lock's release: all of those count as one that may wait, or ours would leave the lock to a crowd
-- that wants nothing. Where that cannot be asked for, all together do.
local listening = redis.pcall('PUBSUB', 'NUMSUB', channel)
local here = listening.err and 0 or listening[2]
return 1 + here + (told - 1 > here and 1 or 0)
