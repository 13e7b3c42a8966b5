-- What goes before acquire scripts whose owners share what they take, in place of unordered.lua.
--
-- ARGV[#ARGV] for how long, in milliseconds, the owner counts as waiting from now on; "0" if it
-- does not wait
local presence = table.remove(ARGV)

-- For how long the owner counts as waiting that is next, if it is another one. This one waits then,
-- or if there is no room for it.
local function others_before(now, waiter, has_room)
  local owner, left = first(now)
  local is_next = not owner or owner == waiter
  if not (is_next and has_room) then
    if presence ~= '0' then
      enter(now, waiter, presence, '0')
    end
  elseif owner then
    -- What fails from here on ends the wait.
    leave(waiter)
  end
  return not is_next and left or nil
end

