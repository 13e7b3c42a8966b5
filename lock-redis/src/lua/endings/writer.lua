-- free: how the script ends that frees the lock of a writer, or of all holders. The message is that
-- of Redisson's, which wakes its readers, too.
local told = tell(publish, channel, '1')
if redis.call('EXISTS', KEYS[1]) == 1 then
  -- The writer goes on as a reader, and others may come in beside it.
  pcall(tell_next, queue_of(KEYS[1]), publish)
  return told
end
if turns ~= 'none' and redis.pcall('EXISTS', queue_of(KEYS[1])) == 1 then
  return let_next_in(KEYS[1], publish, told, turns)
end
return told
