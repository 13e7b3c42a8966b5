-- How release_many.lua ends where clients wait, or some owner did not hold its lock. What one of
-- these does may change what the next one finds.
for i, lock in ipairs(KEYS) do
  local owner = ARGV[1 + i]
  if answers[i] == 0 and drop(redis.pcall, lock, owner) == 1 then
    -- Another one of these granted it the lock.
    answers[i] = tell(publish, ARGV[1 + n + i], '0')
  end
  local answer = answers[i]
  if answer == 0 then
    pcall(give_up, lock, owner, publish)
  elseif not (type(answer) == 'table' and answer.err) and redis.pcall('EXISTS', lock) == 0 then
    let_next_in(lock, publish, answer)
  end
end
return answers
