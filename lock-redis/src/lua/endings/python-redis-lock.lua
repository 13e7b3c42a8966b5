-- free, with `wakes=python-redis-lock`: tells our own, and signals as the unlock of that library
-- does, whose waiters sleep (BLPOP) on a list, the last of the KEYS. One of them takes the signal;
-- without a waiter it stays for a second.
--
-- Theirs deletes what is under that key, whatever it is. Here it is named, and it and the lock are
-- left alone; and a user who may not push is refused before anything is deleted.
local list = KEYS[#KEYS]
local kind = redis.call('TYPE', list).ok
if kind ~= 'none' and kind ~= 'list' then
  return redis.error_reply('WRONGTYPE the list of signals is a ' .. kind)
end
-- A full server refuses a push, unless the script has written before it: `look` and `holder` have,
-- for that is what GETEX is to a server.
local told = tell(publish, channel, '0')
if redis.call('LPUSH', list, '1') > 1 then
  -- As theirs: never more than one.
  redis.call('DEL', list)
  redis.call('LPUSH', list, '1')
end
redis.call('PEXPIRE', list, 1000)
redis.call('DEL', KEYS[1])
return told
