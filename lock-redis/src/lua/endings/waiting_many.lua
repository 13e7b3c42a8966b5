-- How release_many.lua ends where clients wait, or some owner did not hold its lock.
for i, waiter in pairs(others) do
  local lock = KEYS[i]
  if waiter[1] then
    answers[i] = let_next_in(lock, publish, answers[i], nil, waiter)
  else
    pcall(give_up, lock, ARGV[1 + i], publish)
  end
end
return answers
