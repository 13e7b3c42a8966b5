-- release_many: release.lua for several locks, each of an owner of its own.
--
-- KEYS[1] the first lock; there are n
-- ARGV[1] the command that publishes
-- ARGV[2] the first owner; behind the n owners their n channels
--
-- Returns for each lock what release.lua returns; an error among these stands for a release that is
-- to be sent again alone. No error is raised: a release that had freed its lock would be sent again
-- as well, and find it gone.
--
-- Atomic because each release must be, as in release.lua.

local n, publish, answers, queues, are_freed = #KEYS, ARGV[1], {}, {}, true
for i, lock in ipairs(KEYS) do
  answers[i], queues[i] = drop(redis.pcall, lock, ARGV[1 + i]), queue_of(lock)
  if answers[i] == 1 then
    answers[i] = tell(publish, ARGV[1 + n + i], '0')
  else
    are_freed = false
  end
end
if are_freed and redis.pcall('EXISTS', unpack(queues)) == 0 then
  return answers
end
