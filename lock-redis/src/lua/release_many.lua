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

local n, publish, answers = #KEYS, ARGV[1], {}
for i, lock in ipairs(KEYS) do
  local answer = drop(redis.pcall, lock, ARGV[1 + i])
  if answer == 1 then
    answer = tell(publish, ARGV[1 + n + i], '0')
    answer = let_next_in(lock, publish, answer)
  elseif answer == 0 then
    pcall(give_up, lock, ARGV[1 + i], publish)
  end
  answers[i] = answer
end
return answers
