-- A writer that held the lock or waited for it does so no more: readers compete with the next one.
--
-- KEYS[4] the waiting writer
local function compete()
  if KEYS[4] then
    redis.call('DEL', KEYS[4])
  end
end

