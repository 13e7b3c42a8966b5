-- How acquire_many.lua ends where some are not simply free. Last: what these write for an owner
-- that has its lock already a full server allows, and after one write it refuses no further one.
for _, i in ipairs(others) do
  local lock, tombstone, queue, counter = KEYS[i], KEYS[n + i], KEYS[2 * n + i], KEYS[3 * n + i]
  local found = redis.call('EXISTS', tombstone, tombstone, lock, queue)
  answer(i, attempt, found, lock, counter, tombstone, queue, ARGV[1], ARGV[2 + i], ARGV[2])
end
return answers
