-- What goes before free_writer.lua, for a fair lock: how the script ends for a reader.
--
-- KEYS[4] the hold of a reader; of a writer the queue
if not string.find(ARGV[1], ':write$') then
  local is_alive = redis.call('DEL', KEYS[4]) == 1
  redis.call('HDEL', KEYS[1], ARGV[1])
  -- One whose lease ended may wait once more. Other data under the queue's key is no reason to keep
  -- the lock.
  pcall(function()
    if leave(ARGV[1]) > 0 then
      tell_next(publish)
    end
  end)
  if sweeps then
    sweep(KEYS[1], ARGV[1], 2, KEYS[4])
  end
  local told = settle(KEYS[1], channel, publish)
  return is_alive and told or 0
end
