-- 1 if whoever has it tells of its release. Redisson does, but for its spin locks, which nobody can tell from others.
local function tells()
  return 1
end

