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

local n, publish, answers, others = #KEYS, ARGV[1], {}, {}
for i, lock in ipairs(KEYS) do
  local answer = drop(redis.pcall, lock, ARGV[1 + i])
  if answer == 1 then
    answer = tell(publish, ARGV[1 + n + i], '0')
    local waiter = redis.pcall('ZRANGE', queue_of(lock), '0', '1', 'WITHSCORES')
    if waiter[1] then
      others[i] = waiter
    elseif type(answer) ~= 'table' then
      answer = 1
    end
  elseif answer == 0 then
    others[i] = {}
  end
  answers[i] = answer
end
if next(others) == nil then
  return answers
end
