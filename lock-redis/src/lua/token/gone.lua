-- 0: the look was not at a replica.
local function gone()
  return 0
end

