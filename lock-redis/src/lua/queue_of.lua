-- The name of a lock's queue, as in keys.rs. It is made here, because a key that is declared would
-- keep a release from going on while the lock's slot is moved. Former versions have another queue,
-- at a name without the number.
local function queue_of(lock)
  if not string.find(lock, '{', 1, true) then
    return 'distlock_queue:2:{' .. lock .. '}'
  end
  return (string.find(lock, '^:*{[^{}]*}$') and 'distlock_queue:2::' or 'distlock_queue:2:') .. lock
end

