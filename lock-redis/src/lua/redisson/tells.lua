-- 1 if the holder publishes its release. Redisson does, but for its spin locks, which look like the
-- others.
local function tells()
  return 1
end

