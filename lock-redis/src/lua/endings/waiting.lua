-- How release.lua ends where clients wait, or the owner did not hold the lock.
if freed == 1 then
  return let_next_in(lock, publish, told, turns, waiter)
end
if turns ~= 'stay' then
  pcall(give_up, lock, ARGV[1], publish, turns)
end
return 0
