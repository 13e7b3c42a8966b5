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
local told = redis.pcall(publish, channel, '0')
local untold = type(told) == 'table' and told.err
told = untold and 0 or told
local signals = redis.call('LPUSH', list, '1')
if signals > 1 then
  -- As theirs: never more than one.
  redis.call('DEL', list)
  redis.call('LPUSH', list, '1')
else
  -- The last signal was taken, or is over: so a waiter may sleep there, which counts as one more
  -- that was told.
  told = told + 1
end
redis.call('PEXPIRE', list, 1000)
redis.call('DEL', KEYS[1])
if untold then
  return {1 + told, untold}
end
return 1 + told
